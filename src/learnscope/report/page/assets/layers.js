// Layer by step: one heatmap that switches between quantities, and the curves of the row that is open.

/** The part with the heatmap. `key` is its name in the state; options: title, grids, others (grids to open beside). */
function layersPart(payload, key = "layers", options = {}) {
  const bodies = options.grids || payload.grids;
  const part = h("section", { class: "part", id: key, "aria-labelledby": `${key}-head` });
  const grids = new Map();
  const gridOf = (body) => {
    if (grids.get(body.id)?.changed !== body.changed || !grids.has(body.id))
      grids.set(body.id, new Grid(payload, body));
    return grids.get(body.id);
  };
  const chosen = () => bodies.find((body) => body.id === state.grid[key]) || bodies[0];
  const select = h(
    "select",
    {
      id: `${key}-quantity`,
      onchange: () => {
        state.row = {};
        choose("grid", key, select.value);
      },
    },
    optionGroups(bodies),
  );
  const holder = h("div", { class: "heatmap-holder" });
  const rowsShown = h("div", { class: "row-curves", id: `${key}-row` });
  const reset = h("button", { type: "button", class: "tool", onclick: () => zoomTo(key, null) }, "zoom out");
  const about = h("p", { class: "meaning" });
  const draw = renewed(() => {
    const body = chosen(),
      grid = gridOf(body);
    select.value = body.id;
    holder.dataset.grid = body.id;
    about.replaceChildren(
      h("span", { class: "probe" }, body.probe),
      ` ${(body.meaning || body.name).replaceAll("`", "")}${body.unit ? ` [${body.unit}]` : ""}${grid.per > 1 ? `; a column is ${plural(grid.per, "measurement")} and shows the highest` : ""}`,
    );
    const rows = body.scopes.filter(matches);
    if (!rows.length) {
      holder.replaceChildren(h("p", { class: "quiet" }, `No ${body.kind} matches “${short(state.search, 40)}”.`));
      return;
    }
    const map = heatmap(grid, {
      id: key,
      rows,
      scale: body.scale,
      label: `${body.title} by ${body.kind} and step`,
      selected: () => state.row[key],
      onrow: (scope) => choose("row", key, state.row[key] === scope ? null : scope),
    });
    holder.replaceChildren(map.element, colourBar(map.scale, body.scale === "share" ? percent : num));
  });
  const showRow = renewed(() => {
    const scope = state.row[key];
    rowsShown.replaceChildren();
    if (!scope) return;
    const kind = chosen().kind;
    const same = bodies.filter((body) => body.kind === kind && body.scopes.includes(scope) && body.width !== 1);
    const names = new Set([chosen().name]); // one of each name: a quantity may have several sets of labels
    const others = same.filter((body) => body.prominent && !names.has(body.name) && names.add(body.name));
    const first = [chosen(), ...others].slice(0, 6);
    const rest = same.filter((body) => !first.includes(body));
    const panel = (body) =>
      curvePanel(
        payload,
        { ...body, id: `${key}-row/${body.id}`, curves: null },
        {
          curves: [Object.assign(gridOf(body).curve(scope), { name: "" })],
          height: 150,
          class: "small",
          breaks: payload.breaks?.spans,
        },
      );
    append(rowsShown, [
      h(
        "header",
        { class: "row-head" },
        h(
          "h3",
          { title: scope },
          short(scope, 80),
          payload.layer_types?.[scope] ? h("span", { class: "condition" }, payload.layer_types[scope]) : null,
        ),
        h("button", { type: "button", class: "tool", onclick: () => choose("row", key, null) }, "close"),
      ),
      stepExamples(payload),
      h("div", { class: "panels" }, first.map(panel)),
      rest.length
        ? folded(`${plural(rest.length, "more quantity").replace("quantitys", "quantities")} of it`, () =>
            h("div", { class: "panels" }, rest.map(panel)),
          )
        : null,
    ]);
  });
  when("grid search", draw);
  when("row", showRow);
  when("zoom linked", () => {
    reset.hidden = !zoomOf(key);
  });
  reset.hidden = !zoomOf(key);
  append(part, [
    h("h2", { id: `${key}-head` }, options.title || "Layers over steps"),
    bodies.length
      ? h(
          "div",
          { class: "panel wide" },
          h(
            "header",
            { class: "panel-head" },
            h(
              "div",
              { class: "panel-title" },
              h("label", { class: "pick", for: `${key}-quantity` }, "Quantity ", select),
              about,
            ),
            h(
              "div",
              { class: "tools" },
              reset,
              copyMenu(() => gridTable(gridOf(chosen())), {
                get pandas() {
                  return chosen().pandas;
                },
              }),
            ),
          ),
          holder,
          h("p", { class: "quiet hint" }, "Click a row to open its curves; drag to zoom."),
        )
      : h(
          "p",
          { class: "quiet" },
          "No number of single layers was recorded: ls.GradientFlow() and ls.ParameterChange() record them.",
        ),
    rowsShown,
  ]);
  if (bodies.length) draw();
  showRow();
  return part;
}

const matches = (name) => !state.search || name.toLowerCase().includes(state.search.toLowerCase());

function optionGroups(bodies) {
  const groups = Map.groupBy
    ? Map.groupBy(bodies, groupOf)
    : bodies.reduce((map, body) => map.set(groupOf(body), [...(map.get(groupOf(body)) || []), body]), new Map());
  return [...groups].map(([name, list]) =>
    h(
      "optgroup",
      { label: name },
      list.map((body) =>
        h(
          "option",
          { value: body.id },
          `${body.title}${body.condition ? ` (${short(body.condition, 40)})` : ""} · ${short(body.probe, 30)}`,
        ),
      ),
    ),
  );
}

const groupOf = (body) => (body.prominent ? `by ${body.kind}` : `by ${body.kind}, more`);

function gridTable(grid) {
  const rows = [];
  for (const scope of grid.scopes.filter(matches)) {
    const { low, high } = grid.row(scope);
    for (let i = 0; i < grid.width; i++) {
      rows.push(
        grid.per === 1
          ? { scope, step: grid.starts[i], value: plain(high[i]) }
          : { scope, step: grid.starts[i], low: plain(low[i]), high: plain(high[i]), measurements: grid.per },
      );
    }
  }
  return rows;
}

/** The examples of the step under the cursor, where the loop gave their ids. */
function stepExamples(payload) {
  const box = h("p", { class: "step-examples" });
  const known = Object.keys(payload.step_examples || {}).map(Number);
  const show = () => {
    const here = state.cursor !== null && payload.step_examples?.[String(state.cursor)];
    box.textContent = here
      ? `Examples of step ${whole(state.cursor)}: ${here.ids.join(", ")}${here.more ? ` and ${whole(here.more)} more` : ""}.`
      : known.length
        ? `Ids of examples were kept for ${known.length > 8 ? plural(known.length, "step") : `step${known.length > 1 ? "s" : ""} ${known.map(whole).join(", ")}`}: move the cursor there to see them.`
        : "";
    box.hidden = !box.textContent;
  };
  when("cursor", show);
  show();
  return box;
}

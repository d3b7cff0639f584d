// Runs side by side: what was set differently, the best of each, curves over each other, differences of heatmaps.

function comparisonHead(payload) {
  return h(
    "section",
    { class: "verdict unknown", id: "verdict" },
    icon("info"),
    h(
      "div",
      {},
      h("p", { class: "kicker" }, `${plural(payload.labels.length, payload.ranking ? "model" : "run")} compared`),
      h("h1", {}, short(payload.name, 160)),
      // of audits every number differs at their only step, which says nothing
      (payload.ranking ? [] : payload.partings).map((parting) => h("p", { class: "said" }, parting.text)),
      payload.notes.map((note) => h("p", { class: "quiet" }, note)),
    ),
  );
}

function differsPart(payload) {
  const { runs, settings, labels } = payload;
  const same = new Set(runs.filter((run) => run.best).map((run) => run.best.name)).size === 1;
  const best = same
    ? runs
        .filter((run) => run.best)
        .reduce((a, b) =>
          (b.best.better === "higher" ? b.best.value > a.best.value : b.best.value < a.best.value) ? b : a,
        )
    : null;
  const metric = (run) =>
    run.best
      ? [
          h("strong", {}, num(run.best.value)),
          h("span", { class: "quiet" }, ` ${run.best.name} at step ${whole(run.best.step)}`),
          h("br"),
          h(
            "span",
            { class: "quiet small" },
            run.interval
              ? `95 % interval ${num(run.interval[0])} to ${num(run.interval[1])}, n = ${whole(run.n)}`
              : `no interval: ${run.reason}`,
          ),
        ]
      : h("span", { class: "none" }, run.reason);
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, ""),
    runs.map((run, i) =>
      h(
        "th",
        { scope: "col", title: run.path },
        swatch(i),
        " ",
        short(run.name, 40),
        run === best ? h("span", { class: "pill" }, run.best.better === "higher" ? "highest" : "lowest") : null,
      ),
    ),
  );
  const row = (name, cells, attributes) =>
    h(
      "tr",
      attributes || {},
      h("th", { scope: "row", title: name }, short(name, 60)),
      cells.map((cell) => h("td", {}, cell)),
    );
  return h(
    "section",
    { class: "part", id: "differs", "aria-labelledby": "differs-head" },
    h("h2", { id: "differs-head" }, "What differs"),
    h(
      "div",
      { class: "panel wide", id: "panel-differs" },
      h(
        "div",
        { class: "table-box", tabindex: 0, role: "region", "aria-label": "What differs" },
        h(
          "table",
          { class: "differs" },
          h("thead", {}, head),
          h(
            "tbody",
            {},
            row("best", runs.map(metric)),
            row(
              "steps",
              runs.map((run) =>
                run.last_step === null ? "none" : `${whole(run.first_step)} to ${whole(run.last_step)}`,
              ),
            ),
            row(
              "status",
              runs.map((run) => run.status || "not said"),
            ),
            settings.map((setting) =>
              row(
                setting.key,
                setting.values.map((value, i) => (setting.absent[i] ? h("span", { class: "none" }, "absent") : value)),
              ),
            ),
          ),
        ),
      ),
    ),
    settings.length
      ? null
      : h(
          "p",
          { class: "quiet" },
          "No setting differs: probes, model, optimizers, configuration, versions and code are the same.",
        ),
    payload.audits.length
      ? h(
          "div",
          { class: "panel wide" },
          h("h3", {}, "Models side by side"),
          table(
            [{ key: 0, label: "metric" }, ...labels.map((label, i) => ({ key: i + 1, label: short(label, 40) }))],
            payload.audits,
            { label: "Audits" },
          ),
        )
      : null,
  );
}

function overlaidPart(payload, title = "Curves over each other") {
  const part = h(
    "section",
    { class: "part", id: "curves", "aria-labelledby": "curves-head" },
    h("h2", { id: "curves-head" }, title),
  );
  const lines = (body) =>
    (body.partings || []).map((each) => ({ step: each.step, place: payload.labels.indexOf(each.run) }));
  const panel = (body) => curvePanel(payload, { ...body, note: partingNote(body) }, { lines: lines(body), breaks: [] });
  const [first, more] = [
    payload.panels.filter((body) => body.prominent),
    payload.panels.filter((body) => !body.prominent),
  ];
  append(part, [
    payload.panels.length
      ? h("div", { class: "panels big" }, first.map(panel))
      : h("p", { class: "quiet" }, "The runs have no number of the model in common that changes."),
    more.length
      ? folded(
          `${plural(more.length, "more number")}: ${short(more.map((body) => body.name).join(", "), 90)}`,
          () => h("div", { class: "panels" }, more.map(panel)),
          { class: "folded more", id: "more-all" },
        )
      : null,
  ]);
  return part;
}

function partingNote(body) {
  return (body.partings || []).map((each) => `${short(each.run, 40)} diverges at step ${whole(each.step)}.`).join(" ");
}

/** Two heatmaps on one colour scale, and their difference on a scale around 0. */
function differencePart(payload) {
  const part = h(
    "section",
    { class: "part", id: "layers", "aria-labelledby": "layers-head" },
    h("h2", { id: "layers-head" }, "Layers: the difference"),
  );
  const bodies = payload.grids;
  if (!bodies.length) {
    part.append(h("p", { class: "quiet" }, "The runs have no number of single layers at two common steps."));
    return part;
  }
  const chosen = () => bodies.find((body) => body.id === state.grid.layers) || bodies[0];
  const several = payload.labels.length > 2;
  const select = h(
    "select",
    { id: "layers-quantity", onchange: () => choose("grid", "layers", select.value) },
    bodies.map((body) =>
      h(
        "option",
        { value: body.id },
        `${body.title}${body.condition ? ` (${short(body.condition, 40)})` : ""} · ${body.probe}${several ? ` · ${short(body.other, 30)}` : ""}`,
      ),
    ),
  );
  const holder = h("div", {});
  const rowBox = h("div", { class: "row-curves" });
  const gridOf = (body, name) => new Grid(payload, { ...body, ...body.parts[name], parts: null });
  const draw = renewed(() => {
    const body = chosen();
    select.value = body.id;
    holder.dataset.grid = body.id;
    const rows = body.scopes.filter(matches);
    const [left, right, difference] = ["left", "right", "difference"].map((name) => gridOf(body, name));
    const shared = colourScale([left, right], { scale: body.scale });
    const onrow = (scope) => choose("row", "layers", state.row.layers === scope ? null : scope);
    const one = (grid, title, options) => {
      const map = heatmap(grid, { rows, onrow, selected: () => state.row.layers, label: title, ...options });
      return h(
        "div",
        { class: "map-of" },
        h("h3", {}, title),
        map.element,
        options.bar ? colourBar(map.scale, options.write) : null,
      );
    };
    const write = body.ratio ? (value) => (value === 0 ? "same" : `×${num(10 ** value)}`) : num;
    holder.replaceChildren(
      ...(rows.length
        ? [
            one(difference, `${short(body.other, 40)} ${body.ratio ? "÷" : "−"} ${short(body.against, 40)}`, {
              id: "layers",
              diverging: true,
              bar: true,
              write,
            }),
            h(
              "div",
              { class: "two" },
              one(left, short(body.against, 60), { id: "layers-left", colours: shared, scale: body.scale }),
              one(right, short(body.other, 60), { id: "layers-right", colours: shared, scale: body.scale }),
            ),
            colourBar(shared, body.scale === "share" ? percent : num),
          ]
        : [h("p", { class: "quiet" }, "No layer matches the search.")]),
    );
  });
  const showRow = renewed(() => {
    const body = chosen(),
      scope = state.row.layers;
    rowBox.replaceChildren();
    if (!scope || !body.scopes.includes(scope)) return;
    const curves = [gridOf(body, "left").curve(scope), gridOf(body, "right").curve(scope)];
    curves.forEach((curve, i) => {
      curve.name = i ? body.other : body.against;
    });
    append(rowBox, [
      h(
        "header",
        { class: "row-head" },
        h("h3", { title: scope }, short(scope, 80)),
        h("button", { type: "button", class: "tool", onclick: () => choose("row", "layers", null) }, "close"),
      ),
      curvePanel(payload, { ...body, id: `layers-row/${body.id}`, curves: null }, { curves, height: 200 }),
    ]);
  });
  when("grid search", draw);
  when("row grid", showRow);
  draw();
  showRow();
  append(part, [
    h(
      "div",
      { class: "panel wide", id: "panel-layers" },
      h(
        "header",
        { class: "panel-head" },
        h("div", { class: "panel-title" }, h("label", { class: "pick", for: "layers-quantity" }, "Quantity ", select)),
        h(
          "div",
          { class: "tools" },
          copyMenu(() => gridTable(gridOf(chosen(), "difference"))),
        ),
      ),
      holder,
    ),
    rowBox,
  ]);
  return part;
}

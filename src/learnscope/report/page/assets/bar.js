// The bar at the top: parts, step, search, zooms, link and theme.

function topBar(payload, main) {
  const links = [...main.children].filter((part) => LINKS[part.id]).map((part) => [part.id, LINKS[part.id]]);
  const span = stepSpan(payload);
  const slider = h("input", {
    type: "range",
    id: "step",
    min: span[0],
    max: span[1],
    step: 1,
    value: state.cursor ?? span[1],
    oninput: (event) => moveCursor(Number(event.target.value)),
  });
  const reading = h("output", { class: "step-now", for: "step" });
  const showStep = () => {
    slider.value = state.cursor ?? slider.max;
    reading.textContent = state.cursor === null ? "last" : whole(state.cursor);
  };
  when("cursor", showStep);
  showStep();
  const search = h("input", {
    type: "search",
    placeholder: "Search layers",
    "aria-label": "Search layers",
    value: state.search,
  });
  search.addEventListener(
    "input",
    later(() => {
      state.search = search.value;
      changed("search");
    }, 80),
  );
  const linked = h(
    "button",
    {
      type: "button",
      class: "tool",
      "aria-pressed": String(state.linked),
      title: "A zoom in one panel zooms all of them",
      onclick: () => {
        state.linked = !state.linked;
        changed("linked");
      },
    },
    "link zooms",
  );
  when("linked", () => linked.setAttribute("aria-pressed", String(state.linked)));
  const withSteps = span[1] > span[0];
  return h(
    "header",
    { class: "bar" },
    h(
      "div",
      { class: "bar-row" },
      h(
        "div",
        { class: "brand" },
        h("b", {}, "learnscope"),
        h("span", { class: "run-name", title: payload.name }, short(payload.name, 48)),
      ),
      h(
        "nav",
        { "aria-label": "Parts of the page" },
        links.map(([id, title]) =>
          h(
            "a",
            {
              href: `#at=${id}`,
              onclick: (event) => {
                event.preventDefault();
                goTo(id);
              },
            },
            id === "curves" && ["runs", "comparison"].includes(payload.kind) ? "Curves" : title,
          ),
        ),
      ),
      withSteps ? h("label", { class: "step-pick" }, "Step", slider, reading) : null,
      h(
        "div",
        { class: "bar-tools" },
        liveTools(payload),
        payload.grids?.length || payload.audit?.units.length ? search : null,
        withSteps ? linked : null,
        h(
          "button",
          {
            type: "button",
            class: "tool",
            title: "An address that shows what you see now",
            onclick: (event) => copy(`${location.href.split("#")[0]}#${address()}`, event.currentTarget),
          },
          "copy link",
        ),
        h(
          "button",
          {
            type: "button",
            class: "tool",
            id: "theme",
            "aria-label": "Light or dark",
            onclick: () => setTheme(isDark() ? "light" : "dark", true),
          },
          "theme",
        ),
      ),
    ),
  );
}

/** The steps that any curve or grid has. */
function stepSpan(payload) {
  const curves = [...(payload.main || []), ...(payload.panels || [])].flatMap((body) => body.curves || []);
  return spanOfBodies(payload, [...curves, ...(payload.grids || [])]);
}

function spanOfBodies(payload, bodies) {
  const ends = bodies.flatMap((body) => {
    const at = column(payload, body.steps);
    return at.length ? [at[0], body.last ?? at[at.length - 1]] : [];
  });
  return ends.length ? [ends.reduce((a, b) => Math.min(a, b)), ends.reduce((a, b) => Math.max(a, b))] : [0, 0];
}

// A page of runs: one row each, searchable, and their losses over each other.

function runsHead(payload) {
  const count = (name) => payload.runs.filter((run) => run.severity === name).length;
  const said = [
    ["critical", "critical"],
    ["warning", "with warnings"],
    ["ok", "without problems"],
    ["unknown", "not judged"],
  ]
    .filter(([name]) => count(name))
    .map(([name, word]) => `${count(name)} ${word}`)
    .join(", ");
  const worst = ["critical", "warning", "ok"].find(count) || "unknown";
  return h(
    "section",
    { class: `verdict ${worst}`, id: "verdict" },
    icon(worst),
    h(
      "div",
      {},
      h("p", { class: "kicker" }, short(payload.name, 80)),
      h("h1", {}, `${plural(payload.runs.length, "run")}: ${said || "none could be read"}.`),
    ),
  );
}

const chosen = new Set(); // names of runs to lay over each other

function runsPart(payload) {
  const box = h("div", {});
  const sorts = {
    name: (a, b) => a.name.localeCompare(b.name),
    worst: (a, b) => rank(a) - rank(b),
    best: (a, b) => (a.best?.value ?? Infinity) - (b.best?.value ?? Infinity),
    newest: (a, b) => (b.created || 0) - (a.created || 0),
  };
  const rank = (run) => ["critical", "warning", "ok", "unknown"].indexOf(run.severity);
  const names = { name: "by name", worst: "worst first", best: "best holdout first", newest: "newest first" };
  const search = h("input", {
    type: "search",
    placeholder: "Search runs",
    "aria-label": "Search runs",
    value: state.pick.run || "",
  });
  search.addEventListener(
    "input",
    later(() => choose("pick", "run", search.value || null), 80),
  );
  const select = h(
    "select",
    { "aria-label": "Order", onchange: () => choose("pick", "order", select.value) },
    Object.entries(names).map(([value, name]) => h("option", { value }, name)),
  );
  const overlay = h("a", { class: "button", role: "link" }, "");
  const over = () => {
    const names = [...chosen].filter((name) => payload.runs.some((run) => run.name === name));
    overlay.hidden = names.length < 2;
    overlay.href = `?${new URLSearchParams(names.map((name) => ["run", name]))}`;
    overlay.textContent = `Lay ${names.length} runs over each other`;
  };
  const toggle = (name) => (event) => {
    if (event.target.checked) chosen.add(name);
    else chosen.delete(name);
    over();
  };
  const checkbox = (name) =>
    h("input", {
      type: "checkbox",
      "aria-label": `Choose ${name}`,
      checked: chosen.has(name),
      onchange: toggle(name),
    });
  over();
  const draw = () => {
    const asked = (state.pick.run || "").toLowerCase();
    select.value = sorts[state.pick.order] ? state.pick.order : "name";
    const shown = payload.runs
      .filter((run) => `${run.name} ${run.model} ${run.sentence}`.toLowerCase().includes(asked))
      .sort(sorts[select.value]);
    box.replaceChildren(
      table(
        [
          ...(payload.live ? [{ key: "name", label: "", format: checkbox }] : []),
          {
            key: "name",
            label: "run",
            format: (name, run) => [
              h("span", { class: `badge ${run.severity}` }, icon(run.severity)),
              " ",
              run.report
                ? h("a", { href: run.report, title: run.path || name }, short(name, 48))
                : h("b", { title: run.path || name }, short(name, 48)),
              run.model ? h("span", { class: "condition" }, short(run.model, 30)) : null,
            ],
          },
          { key: "sentence", label: "verdict", format: (text) => short(text, 160) },
          { key: "spark", label: "loss", format: (spark) => sparkline(spark, null) },
          {
            key: "best",
            label: "best",
            format: (best) => (best ? `${num(best.value)} (${best.name}, step ${whole(best.step)})` : null),
          },
          { key: "last_step", label: "steps", align: "right", format: whole },
          { key: "status", label: "status" },
        ],
        shown,
        { label: "Runs" },
      ),
      shown.length ? "" : h("p", { class: "quiet" }, "No run matches the search."),
    );
  };
  when("pick", draw);
  draw();
  return h(
    "section",
    { class: "part", id: "runs", "aria-labelledby": "runs-head" },
    h("h2", { id: "runs-head" }, "Runs"),
    h(
      "div",
      { class: "panel wide", id: "panel-runs" },
      h(
        "header",
        { class: "panel-head" },
        h("div", { class: "tools" }, search, select, overlay),
        h(
          "div",
          { class: "tools" },
          copyMenu(() =>
            payload.runs.map((run) => ({
              run: run.name,
              verdict: run.sentence,
              severity: run.severity,
              best: run.best?.value ?? null,
              best_step: run.best?.step ?? null,
              last_step: run.last_step,
              status: run.status,
            })),
          ),
        ),
      ),
      box,
    ),
    payload.broken.length
      ? h(
          "div",
          { class: "panel wide" },
          h("h3", {}, "Could not be read"),
          table(
            [
              { key: "name", label: "folder" },
              { key: "why", label: "why" },
            ],
            payload.broken,
            { label: "Runs that could not be read" },
          ),
        )
      : null,
    payload.left_out.length
      ? h(
          "p",
          { class: "quiet" },
          `Curves of the first runs only; left out: ${short(payload.left_out.join(", "), 300)}.`,
        )
      : null,
  );
}

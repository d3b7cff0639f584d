// All other numbers, by family; what never changed is folded away; cost, environment and what is missing.

const FAMILY_TITLES = {
  outputs: "Outputs and loss",
  gradients: "Gradients",
  updates: "Updates",
  weights: "Weights",
  examples: "Examples and groups",
  features: "Features",
  adapters: "Adapters",
  landscape: "Loss landscape",
  bits: "Bits",
  robustness: "Robustness",
  cost: "Cost",
  own: "Your own numbers",
};

function mainPart(payload) {
  const marks = payload.findings
    .map((finding, i) => ({ ...finding, number: i + 1 }))
    .filter((finding) => finding.steps && finding.acknowledged === null);
  const all = spanOfBodies(
    payload,
    payload.main.flatMap((body) => body.curves),
  );
  const options = (body) => ({
    height: body.strip ? 84 : body.id === "main/loss" ? 300 : 200,
    breaks: payload.breaks.spans,
    marks: body.strip ? [] : marks.slice(0, 12),
    class: "wide",
    span: all[1] > all[0] ? all : null,
  });
  const bad = payload.breaks.spans.length
    ? h(
        "p",
        { class: "key-line" },
        h("i", { class: "box broken-band" }),
        `not finite: ${payload.breaks.what.join(", ")}`,
      )
    : null;
  return h(
    "section",
    { class: "part", id: "curves", "aria-labelledby": "curves-head" },
    h("h2", { id: "curves-head" }, "Training"),
    payload.main.length
      ? [
          h(
            "div",
            { class: "stack" },
            payload.main.map((body) => curvePanel(payload, body, options(body))),
          ),
          bad,
        ]
      : h(
          "p",
          { class: "quiet" },
          "No loss was logged and no holdout was measured: ",
          h("code", {}, "w.log(loss=loss)"),
          " and ",
          h("code", {}, "ls.watch(..., holdout=data)"),
          " record them.",
        ),
  );
}

function numbersPart(payload) {
  const part = h(
    "section",
    { class: "part", id: "numbers", "aria-labelledby": "numbers-head" },
    h("h2", { id: "numbers-head" }, "All numbers"),
  );
  const families = [...new Set(payload.panels.map((body) => body.family))];
  const panel = (body) => curvePanel(payload, body, { breaks: payload.breaks.spans });
  if (!families.length) part.append(h("p", { class: "quiet" }, "No other number changed over the steps."));
  for (const family of families) {
    const own = payload.panels.filter((body) => body.family === family);
    const [first, more] = [own.filter((body) => body.prominent), own.filter((body) => !body.prominent)];
    append(part, [
      h(
        "div",
        { class: "family", id: `family-${family}` },
        h("h3", { class: "family-name" }, FAMILY_TITLES[family] || family),
        first.length ? h("div", { class: "panels" }, first.map(panel)) : null,
        more.length
          ? folded(
              `${plural(more.length, first.length ? "more number" : "number")}: ${short(more.map((body) => body.name).join(", "), 90)}`,
              () => h("div", { class: "panels" }, more.map(panel)),
              { class: "folded more", id: `more-${family}` },
            )
          : null,
      ),
    ]);
  }
  append(part, [flatPart(payload), oncePart(payload)]);
  return part;
}

function flatPart(payload) {
  if (!payload.flat.length) return null;
  return folded(
    `Checked, nothing to see: ${plural(payload.flat.length, "number")} that never changed`,
    () =>
      table(
        [
          {
            key: "title",
            label: "number",
            format: (title, row) =>
              h(
                "span",
                { title: row.meaning },
                title,
                row.condition ? h("span", { class: "condition" }, row.condition) : null,
              ),
          },
          { key: "probe", label: "probe" },
          { key: "kind", label: "of", format: (kind, row) => (row.scopes ? plural(row.scopes, kind) : kind) },
          { key: "value", label: "always", align: "right" },
          { key: "steps", label: "steps measured", align: "right", format: whole },
        ],
        payload.flat,
        { label: "Numbers that never changed" },
      ),
    { id: "flat" },
  );
}

function oncePart(payload) {
  if (!payload.once.length) return null;
  return folded(
    `${plural(payload.once.length, "number")} measured once`,
    () =>
      table(
        [
          {
            key: "title",
            label: "number",
            format: (title, row) => `${title}${row.of ? ` (${short(row.of, 50)})` : ""}`,
          },
          { key: "probe", label: "probe" },
          { key: "value", label: "value", align: "right" },
          { key: "step", label: "at step", align: "right", format: whole },
        ],
        payload.once,
        { label: "Numbers measured once" },
      ),
    { id: "once" },
  );
}

function costPart(payload) {
  const head = ["probe", "firings", "mean ms", "total s", "share of the run's time"];
  const columns = head.map((label, i) => ({ key: i, label, align: i ? "right" : null }));
  return h(
    "section",
    { class: "part", id: "cost", "aria-labelledby": "cost-head" },
    h("h2", { id: "cost-head" }, "Cost and environment"),
    h(
      "div",
      { class: "two" },
      h(
        "div",
        { class: "panel" },
        h("h3", {}, "What the probes cost"),
        payload.costs.length
          ? table(columns, payload.costs, { label: "Cost of the probes" })
          : h("p", { class: "quiet" }, "No probe fired."),
      ),
      h(
        "div",
        { class: "panel" },
        h("h3", {}, "What was watched"),
        h(
          "dl",
          { class: "facts" },
          payload.facts.map(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)]),
        ),
        payload.problems.length
          ? [
              h("h3", {}, "Damaged records"),
              h(
                "ul",
                {},
                payload.problems.map((each) => h("li", {}, short(each, 200))),
              ),
            ]
          : null,
        payload.not_recorded.length
          ? [
              h("h3", {}, "Not recorded"),
              h(
                "ul",
                { class: "quiet" },
                payload.not_recorded.map(([probe, what]) => h("li", {}, h("b", {}, probe), `: ${what}`)),
              ),
            ]
          : null,
        h("h3", {}, "Reading further"),
        code(payload.open),
      ),
    ),
    payload.left_out.length
      ? h(
          "p",
          { class: "quiet" },
          `Left out to keep the file small: ${short(payload.left_out.join("; "), 600)}. The numbers are in the run folder.`,
        )
      : null,
  );
}

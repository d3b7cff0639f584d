// The page of an audit: three verdicts, and sizes against damage.

function auditCards(payload) {
  return h(
    "section",
    { class: "cards", id: "cards", "aria-label": "Verdicts" },
    payload.audit.cards.map((card) => {
      const [first, ...rest] = card.lines;
      return h(
        "div",
        { class: "card" },
        h("h2", {}, card.title),
        first
          ? [
              h("p", { class: "card-value" }, first.value, h("span", { class: "card-name" }, first.name)),
              first.ends
                ? h(
                    "p",
                    { class: "card-ends" },
                    /^no interval/.test(first.ends) ? first.ends : `95 % interval ${first.ends}`,
                  )
                : null,
            ]
          : h("p", { class: "card-value quiet" }, "not measured"),
        rest.length
          ? h(
              "dl",
              { class: "facts" },
              rest.map((line) => [
                h("dt", {}, line.name),
                h("dd", {}, line.value, line.ends ? h("span", { class: "quiet" }, ` (${line.ends})`) : null),
              ]),
            )
          : null,
        h("p", { class: "quiet small" }, [card.n, card.note || (first ? "" : card.reason)].filter(Boolean).join(". ")),
      );
    }),
  );
}

const FAMILY_PLACES = {
  original: 5,
  uniform: 0,
  mixed: 2,
  progressive: 1,
  attention: 3,
  mlp: 4,
  custom: 6,
  optimal: 2,
};

function frontierPart(payload) {
  const { audit } = payload;
  const part = h(
    "section",
    { class: "part", id: "frontier", "aria-labelledby": "frontier-head" },
    h("h2", { id: "frontier-head" }, "Size against damage"),
  );
  const known = audit.configurations.filter((item) => item.bytes !== null);
  if (!known.length) {
    part.append(
      h(
        "p",
        { class: "quiet" },
        `No configuration of bits was measured: ${audit.missing.configurations || audit.missing.optimum || "ls.BitWidths() and ls.BitOptimum() do"}.`,
      ),
    );
    return part;
  }
  const box = h("div", { class: "plot" });
  const picked = h("p", { class: "check-say", role: "status" });
  const dots = known.map((item) => ({
    x: item.bytes,
    y: item.damage,
    low: item.low,
    high: item.high,
    label: item.name,
    place: FAMILY_PLACES[item.family] ?? 6,
    star: item.recommended,
    hollow: !item.frontier,
    joined: item.frontier,
    item,
    title: `${item.name}: ${bytes(item.bytes)}, ${audit.measure} ${num(item.damage)}. ${item.change}`,
  }));
  const zero = known.filter((item) => item.damage === 0);
  const missing = audit.configurations.filter((item) => item.damage === null || item.bytes === null);
  const budget = budgetPanel(payload);
  const draw = () => {
    const own = budget?.answer();
    const all = own?.mix
      ? [
          ...dots,
          {
            x: own.bytes,
            y: own.damage,
            label: "your budget",
            place: 7,
            hollow: true,
            title: "Solved from the damages of single units, not measured",
          },
        ]
      : dots;
    box.replaceChildren(
      scatter(
        all,
        {
          title: "Size against damage",
          x: "size when packed",
          y: audit.measure,
          logY: true,
          formatX: bytes,
          limit: audit.limit ? { y: audit.limit, label: `KL ${num(audit.limit)}` } : null,
          onpick: (point) => picked.replaceChildren(point.title),
        },
        box.clientWidth,
        400,
      ),
    );
  };
  whenVisible(box, draw);
  when("pick", () => box.clientWidth && draw());
  const rows = [...known].sort((a, b) => b.bytes - a.bytes);
  append(part, [
    h(
      "div",
      { class: "panel wide", id: "panel-frontier" },
      h(
        "header",
        { class: "panel-head" },
        h(
          "div",
          { class: "panel-title" },
          h("h3", {}, "Every configuration that was measured"),
          h(
            "p",
            { class: "meaning" },
            `Filled: on the Pareto frontier. ${audit.recommended ? `Star: recommended (${audit.recommended}). ` : ""}Lines are 95 % intervals.${zero.length ? ` Not drawn, since a logarithmic scale has no place for 0: ${zero.map((item) => item.name).join(", ")}.` : ""}`,
          ),
        ),
        h(
          "div",
          { class: "tools" },
          copyMenu(() => audit.configurations, { pandas: "run.frame('BitWidths')" }),
        ),
      ),
      box,
      picked,
    ),
    budget?.element,
    folded(`All ${plural(audit.configurations.length, "configuration")} as a table`, () =>
      table(
        [
          { key: "name", label: "configuration" },
          { key: "bytes", label: "size", format: (v) => (v === null ? null : bytes(v)), align: "right" },
          { key: "compression", label: "times smaller", format: (v) => (v === null ? null : num(v)), align: "right" },
          {
            key: "damage",
            label: audit.measure,
            align: "right",
            format: (v, row) =>
              v === null
                ? row.reason || "n/a"
                : `${num(v)}${row.low !== null ? ` (${num(row.low)} to ${num(row.high)})` : ""}`,
          },
          { key: "change", label: "loss" },
        ],
        [...rows, ...missing.filter((item) => !rows.includes(item))],
        { label: "Configurations" },
      ),
    ),
  ]);
  return part;
}

const AUDIT_PLACES = {
  Performance: "cards",
  InferenceSpeed: "cards",
  MemoryUse: "cards",
  ExportedSpeed: "cards",
  BitSensitivity: "units",
  BitWidths: "frontier",
  BitOptimum: "frontier",
  Attacks: "robustness",
  NoiseRobustness: "robustness",
  InputPerturbation: "robustness",
  PromptPerturbation: "robustness",
  AutoAttack: "robustness",
  BitRobustness: "robustness",
};

/** Where the page of an audit shows what a finding rests on. */
const auditPlace = (finding) => AUDIT_PLACES[finding.panel?.split("/")[0]];

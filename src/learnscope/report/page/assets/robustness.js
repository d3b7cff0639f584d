// AutoAttack beside PGD, with the flags for masked gradients.

function autoattackPanel(auto) {
  if (!auto) return null;
  const interval = (each) =>
    each.value === null
      ? each.reason || "n/a"
      : `${percent(each.value)}${each.low !== null ? ` (${percent(each.low)} to ${percent(each.high)})` : ""}`;
  const flag = ({ name, value, reason }) =>
    h("li", { class: value === 0 ? "failed" : "" }, `${name}: ${value === null ? `not told (${reason})` : value ? "yes" : "NO"}`);
  const masked = auto.flags.some((each) => each.value === 0);
  return h(
    "div",
    { class: "panel wide", id: "panel-autoattack" },
    h("h3", {}, "AutoAttack beside PGD"),
    auto.gap.value === null
      ? h("p", { class: "quiet" }, `Not measured: ${auto.gap.reason}.`)
      : [
          h(
            "p",
            { class: "meaning" },
            `Clean accuracy ${interval(auto.clean)}. AutoAttack takes ${interval(auto.gap)} at the largest epsilon, and PGD alone overlooks ${interval(auto.pgd_gap)}. ${auto.on}.`,
          ),
          h("p", {}, h("strong", {}, masked ? "Gradients are masked:" : "No sign of masked gradients:")),
          h("ul", { class: "flags" }, auto.flags.map(flag)),
          auto.said.map((text) => h("p", { class: "quiet" }, `The package warns: ${text}`)),
          Object.entries(auto.left_out).map(([name, why]) => h("p", { class: "quiet" }, `${name} was not run: ${why}.`)),
          table(
            [
              { key: "name", label: "attack" },
              { key: "norm", label: "norm" },
              { key: "epsilon", label: "epsilon", align: "right", format: num },
              { key: "accuracy", label: "accuracy", align: "right", format: interval },
            ],
            auto.rows,
            { label: "AutoAttack" },
          ),
        ],
  );
}

// What changed prompts do to a model: a dot for each kind of change and share, and the same as a table.

function promptsPanel(robustness, missing) {
  const { prompts } = robustness;
  if (!prompts)
    return missing.prompts ? h("p", { class: "quiet" }, `Changed prompts: not measured. ${missing.prompts}.`) : null;
  const interval = (each, write) =>
    each.value === null
      ? each.reason || "n/a"
      : `${write(each.value)}${each.low !== null ? ` (${write(each.low)} to ${write(each.high)})` : each.reason ? ` (no interval: ${each.reason})` : ""}`;
  const points = (value) => {
    const shown = num(Math.abs(Number((100 * value).toFixed(3))));
    return shown === "0" ? shown : `${value > 0 ? "+" : "−"}${shown}`;
  };
  const known = prompts.rows.filter((row) => row.accuracy.value !== null);
  const kinds = [...new Set(prompts.rows.map((row) => row.name))];
  const shares = [...new Set(known.map((row) => row.share))].sort((a, b) => a - b);
  // the shares are few and far between: each has its own column, in which kinds stand side by side
  const column = (row) => shares.indexOf(row.share) + 0.8 * ((kinds.indexOf(row.name) + 0.5) / kinds.length - 0.5);
  const dots = known.map((row) => ({
    x: column(row),
    y: row.accuracy.value,
    low: row.accuracy.low,
    high: row.accuracy.high,
    place: kinds.indexOf(row.name),
    label: "",
    title: `${row.name}, ${row.level}: accuracy ${interval(row.accuracy, points)} points, loss ${interval(row.loss, num)}, KL ${interval(row.kl, num)}`,
  }));
  const box = h("div", { class: "plot" });
  const picked = h("p", { class: "check-say", role: "status" });
  whenVisible(box, () =>
    box.replaceChildren(
      scatter(
        dots,
        {
          title: "Accuracy that changed prompts take",
          x: "share of the prompt that is changed",
          y: "accuracy, percentage points",
          ticksX: shares.map((share, place) => ({ at: place, label: percent(share) })),
          formatY: points,
          limit: { y: 0, label: "as with the prompt itself" },
          onpick: (point) => picked.replaceChildren(point.title),
        },
        box.clientWidth,
        320,
      ),
    ),
  );
  return h(
    "div",
    { class: "panel wide", id: "panel-prompts" },
    h("h3", {}, "Changed prompts"),
    h("p", { class: "threat" }, h("strong", {}, "Threat model: anybody who sends text. "), prompts.threat),
    h("p", { class: "meaning" }, `${prompts.on ? `Measured ${prompts.on}, ${plural(prompts.seeds, "seed")}. ` : ""}Intervals are of 95 %, over examples.`),
    prompts.reason ? h("p", { class: "quiet" }, `Some kinds of change are missing: ${prompts.reason}.`) : null,
    known.length
      ? [
          h(
            "p",
            { class: "legend" },
            kinds.map((kind, i) => h("span", { class: "key" }, swatch(i), ` ${kind} `)),
          ),
          box,
          picked,
        ]
      : null,
    table(
      [
        { key: "name", label: "what" },
        { key: "level", label: "share" },
        { key: "accuracy", label: "accuracy, percentage points", align: "right", format: (v) => interval(v, points) },
        { key: "loss", label: "change of the loss", align: "right", format: (v) => interval(v, num) },
        { key: "kl", label: "mean KL", align: "right", format: (v) => interval(v, num) },
      ],
      prompts.rows,
      { label: "Changed prompts" },
    ),
  );
}

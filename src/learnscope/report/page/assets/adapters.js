// What only adapters have: ranks to copy, what lower ranks cost, and the map of modules.

function adapterPart(payload) {
  const { adapters, cuts } = payload.adapter;
  const part = h(
    "section",
    { class: "part", id: "adapters", "aria-labelledby": "adapters-head" },
    h("h2", { id: "adapters-head" }, "Adapters"),
  );
  const two = h("div", { class: "two" });
  for (const adapter of adapters) {
    two.append(
      h(
        "div",
        { class: "panel", "data-adapter": adapter.name },
        h("header", { class: "panel-head" }, h("h3", {}, `Recommended ranks of ${short(adapter.name, 40)}`)),
        h("p", { class: "meaning" }, adapter.sentence),
        adapter.rank_pattern
          ? [
              h("p", { class: "small" }, ranksInWords(adapter)),
              code(`rank_pattern = ${JSON.stringify(adapter.rank_pattern, null, 1)}`, "Copy"),
            ]
          : null,
      ),
    );
  }
  if (!adapters.length) two.append(h("p", { class: "quiet" }, "No adapter was measured."));
  two.append(cutPanel(cuts));
  part.append(two);
  return part;
}

function ranksInWords(adapter) {
  const counts = new Map();
  for (const rank of Object.values(adapter.rank_pattern)) counts.set(rank, (counts.get(rank) || 0) + 1);
  return [...counts]
    .sort((a, b) => a[0] - b[0])
    .map(([rank, n]) => (rank === 0 ? `${plural(n, "module")} without any` : `rank ${rank} for ${plural(n, "module")}`))
    .join(", ");
}

function cutPanel(cuts) {
  const box = h("div", { class: "plot" });
  if (!cuts.length)
    return h(
      "div",
      { class: "panel", id: "panel-cuts" },
      h("h3", {}, "What lower ranks cost"),
      h("p", { class: "quiet" }, "Not measured: ls.AdapterTruncation() cuts the ranks and compares the outputs."),
    );
  const none = cuts.find((cut) => cut.energy === 0);
  const dots = cuts
    .filter((cut) => cut.damage > 0)
    .map((cut) => ({
      x: cut.kept,
      y: cut.damage,
      place: cut.cut === "each" ? 0 : 1,
      star: cut.recommended,
      joined: cut.cut === "each",
      label: cut.energy === 0 ? "no adapter" : `${percent(cut.energy)}${cut.cut === "all" ? " (all alike)" : ""}`,
      title: `keeps ${percent(cut.energy)} of the energy in ${percent(cut.kept)} of the parameters: ${cut.measure} ${num(cut.damage)}`,
    }));
  whenVisible(box, () =>
    box.replaceChildren(
      scatter(
        dots,
        { title: "What lower ranks cost", x: "parameters kept", y: cuts[0].measure, logY: true, formatX: percent },
        box.clientWidth,
        320,
      ),
    ),
  );
  return h(
    "div",
    { class: "panel", id: "panel-cuts" },
    h(
      "header",
      { class: "panel-head" },
      h(
        "div",
        { class: "panel-title" },
        h("h3", {}, "What lower ranks cost"),
        h(
          "p",
          { class: "meaning" },
          `Outputs at step ${whole(cuts[0].step)} with every update cut to a share of its energy${none ? `; without adapters ${num(none.damage)}` : ""}. Star: recommended.`,
        ),
      ),
      h(
        "div",
        { class: "tools" },
        copyMenu(() => cuts, { pandas: "run.frame('AdapterTruncation')" }),
      ),
    ),
    box,
  );
}

/** The grids of modules, those that people ask for first. */
function moduleGrids(payload) {
  const first = ["effective_rank", "frobenius_norm", "norm"];
  const place = (body) => (first.includes(body.name) ? first.indexOf(body.name) : first.length);
  return payload.grids.filter((body) => body.family === "adapters").sort((a, b) => place(a) - place(b));
}

// Several audited models on one frontier of size and loss, and fine-tuned ones beside their base, layer by layer.

function rankingPart(payload) {
  const { ranking, labels } = payload;
  if (!ranking) return null;
  const part = h(
    "section",
    { class: "part", id: "ranking", "aria-labelledby": "ranking-head" },
    h("h2", { id: "ranking-head" }, "All models on one frontier"),
    h(
      "div",
      { class: "panel wide", id: "panel-ranking-verdict" },
      h(
        "dl",
        { class: "facts" },
        ranking.verdict.map(([label, said]) => [h("dt", {}, label), h("dd", {}, said)]),
      ),
    ),
  );
  if (!ranking.points.length) return part;
  const box = h("div", { class: "plot" });
  const picked = h("p", { class: "check-say", role: "status" });
  const title = (point) => `${point.model}, ${point.name === "original" ? "as stored" : point.name}`;
  const far = 4 * Math.min(...ranking.points.map((point) => point.value));
  const near = ranking.points.filter((point) => ranking.measure === "loss" || point.value <= far);
  const beside = (point) =>
    point.change_low === null
      ? share(point.change)
      : `${share(point.change)} (${share(point.change_low)} to ${share(point.change_high)})`;
  const dots = near.map((point) => ({
    x: point.bytes,
    y: point.value,
    low: point.low,
    high: point.high,
    label: point.dominated_by === null ? title(point) : "",
    place: labels.indexOf(point.model),
    star: title(point) === ranking.smallest,
    hollow: point.dominated_by !== null,
    joined: point.dominated_by === null,
    title: `${title(point)}: ${bytes(point.bytes)}, ${ranking.measure} ${num(point.value)}, beside the best ${beside(point)}${point.dominated_by ? `; dominated by ${point.dominated_by}` : ""}`,
  }));
  whenVisible(box, () =>
    box.replaceChildren(
      scatter(
        dots,
        {
          title: "Size against loss, all models",
          x: "size when packed",
          y: ranking.measure,
          logX: true,
          logY: ranking.measure !== "loss",
          formatX: bytes,
          limit: ranking.limit ? { y: ranking.limit, label: `${share(ranking.allowed)} above the best` } : null,
          onpick: (point) => picked.replaceChildren(point.title),
        },
        box.clientWidth,
        420,
      ),
    ),
  );
  const left = ranking.points.length - near.length;
  append(part, [
    h(
      "div",
      { class: "panel wide", id: "panel-ranking" },
      h(
        "header",
        { class: "panel-head" },
        h(
          "div",
          { class: "panel-title" },
          h("h3", {}, `${capitalised(ranking.measure)} on the same ${plural(ranking.texts, "text")}`),
          h(
            "p",
            { class: "meaning" },
            "Filled and joined: nothing that was measured is as small and as good. Star: the smallest within the accepted loss of the best. Lines are 95 % intervals over texts; differences are paired, and far better known than these.",
            left ? ` ${plural(left, "point")} above 4 times the best not drawn.` : "",
          ),
          h(
            "p",
            { class: "legend" },
            labels
              .filter((label) => ranking.points.some((point) => point.model === label))
              .map((label) => h("span", { class: "key" }, swatch(labels.indexOf(label)), ` ${short(label, 40)} `)),
          ),
        ),
        h(
          "div",
          { class: "tools" },
          copyMenu(() => ranking.points, { pandas: "run.frame('SharedTexts')" }),
        ),
      ),
      box,
      picked,
    ),
    folded(`All ${plural(ranking.points.length, "point")} as a table`, () =>
      table(
        [
          { key: "model", label: "model" },
          { key: "name", label: "stored", format: (v) => (v === "original" ? "as stored" : v) },
          { key: "bytes", label: "size", format: bytes, align: "right" },
          {
            key: "value",
            label: ranking.measure,
            align: "right",
            format: (v, row) => (row.low === null ? num(v) : `${num(v)} (${num(row.low)} to ${num(row.high)})`),
          },
          { key: "change", label: "beside the best", align: "right", format: (v, row) => beside(row) },
          { key: "dominated_by", label: "dominated by", format: (v) => v ?? "on the frontier" },
        ],
        [...ranking.points].sort((a, b) => a.bytes - b.bytes),
        { label: "All points" },
      ),
    ),
  ]);
  return part;
}

const share = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${num(Math.abs(100 * value))} %`;
const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function basesPart(payload) {
  if (!payload.bases.length) return null;
  const part = h(
    "section",
    { class: "part", id: "bases", "aria-labelledby": "bases-head" },
    h("h2", { id: "bases-head" }, "Beside the base model, layer by layer"),
  );
  for (const { model, base, layers } of payload.bases) {
    const back = layers.filter((layer) => layer.back);
    const changed = layers.filter((layer) => !layer.same);
    append(part, [
      h(
        "div",
        { class: "panel wide" },
        h("h3", {}, `${short(model, 60)} beside ${short(base, 60)}`),
        h(
          "p",
          { class: "meaning" },
          `The loss with the base's weights in one layer alone, less the model's own. ${back.length} of the ${changed.length} that differ could go back, all at once.`,
        ),
        table(
          [
            { key: "layer", label: "layer" },
            { key: "distance", label: "‖W − W₀‖ / ‖W₀‖", align: "right", format: (v) => (v === null ? "n/a" : num(v)) },
            {
              key: "change",
              label: "loss, nats a position",
              align: "right",
              format: (v, row) =>
                v === null ? "n/a" : `${num(v)}${row.low === null ? "" : ` (${num(row.low)} to ${num(row.high)})`}`,
            },
            { key: "kl", label: "KL", align: "right", format: (v) => (v === null ? "n/a" : num(v)) },
            { key: "back", label: "could go back", format: (v, row) => (row.same ? "is the same" : v ? "yes" : "no") },
          ],
          layers,
          { label: `Layers of ${model}` },
        ),
      ),
    ]);
  }
  return part;
}

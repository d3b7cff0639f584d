// Training examples: tables of those to look at first, and a map of all of them.

const EXAMPLE_TABLES = {
  hardest: { title: "Hardest", about: "the lowest mean probability of their own label", python: "run.hard_examples()" },
  forgotten: {
    title: "Most forgotten",
    about: "right at one presentation and wrong at the next",
    python: "run.forgotten_examples()",
  },
  doubted: {
    title: "Suspected labels",
    about: "the model prefers another label, and there are more of these than chance explains",
    python: "run.suspicious_labels()",
  },
};

function examplesPart(payload) {
  const { examples } = payload;
  const part = h(
    "section",
    { class: "part", id: "examples", "aria-labelledby": "examples-head" },
    h("h2", { id: "examples-head" }, "Training examples"),
  );
  if (!examples) {
    part.append(
      h(
        "p",
        { class: "quiet" },
        "Single examples were not followed: ",
        h("code", {}, "ls.ExampleLedger()"),
        " records how each is learned, forgotten or doubted.",
      ),
    );
    return part;
  }
  const there = Object.keys(EXAMPLE_TABLES).filter((name) => examples[name].length);
  const body = h("div", { class: "panel wide", id: "panel-examples" });
  const draw = () => {
    const name = there.includes(state.pick.examples) ? state.pick.examples : there[0];
    const { about, python } = EXAMPLE_TABLES[name] || {};
    const tabs = h(
      "div",
      { class: "tabs", role: "group", "aria-label": "Which examples" },
      there.map((each) =>
        h(
          "button",
          {
            type: "button",
            class: "tab",
            "aria-pressed": String(each === name),
            onclick: () => choose("pick", "examples", each),
          },
          EXAMPLE_TABLES[each].title,
        ),
      ),
    );
    const doubt =
      name === "doubted" && examples.doubt.number !== undefined
        ? ` About ${num(examples.doubt.number)} labels (${num(examples.doubt.low)} to ${num(examples.doubt.high)}) are likely wrong.`
        : "";
    body.replaceChildren(
      h(
        "header",
        { class: "panel-head" },
        tabs,
        h("div", { class: "tools" }, name ? copyMenu(() => examples[name], { pandas: python }) : null),
      ),
      name
        ? h("p", { class: "meaning" }, `Of ${plural(examples.n, "example")}: ${about}.${doubt}`)
        : h("p", { class: "quiet" }, "None of them was hard, forgotten or doubted."),
      name ? exampleTable(payload, name) : "",
      name ? howToSee(examples) : "",
    );
  };
  when("pick", draw);
  draw();
  append(part, [h("div", { class: "two" }, body, mapPanel(payload))]);
  return part;
}

function exampleTable(payload, name) {
  const { examples } = payload;
  const rows = examples[name];
  const looks = new Map(rows.map((row, i) => [row, examples.looks[examples.look_of[name][i]]]));
  const all = [
    { key: "id", label: "id", format: (id) => h("span", { title: String(id) }, short(id, 32)) },
    { key: "target", label: "label", align: "right" },
    { key: "suggested", label: "predicted", align: "right" },
    { key: "confidence", label: "mean p(label)", format: num, align: "right" },
    { key: "correctness", label: "share right", format: percent, align: "right" },
    { key: "forgetting_events", label: "forgotten", align: "right" },
    { key: "el2n_mean", label: "EL2N", format: num, align: "right" },
    { key: "presentations", label: "shown", align: "right" },
  ];
  const columns = all.filter((each) => rows.some((row) => row[each.key] !== undefined));
  if ([...looks.values()].some(Boolean))
    columns.splice(1, 0, { key: "look", label: "example", format: (_, row) => lookCell(payload, looks.get(row), row.id) });
  return table(columns, rows, { label: "Training examples" });
}

/** A thumbnail, a text, or why there is neither. */
function lookCell(payload, look, id) {
  if (!look) return h("span", { class: "none" }, "not kept");
  const note = look.note ? h("span", { class: "look-note" }, look.note) : null;
  if (look.pixels) return h("div", { class: "look" }, thumbnail(payload, look, id), note);
  if (look.text !== undefined) return h("div", { class: "look" }, textCell(look.text), note);
  return h("span", { class: "look-note" }, look.reason);
}

/** A text; a long one is folded behind its beginning, so that rows stay low. */
function textCell(text) {
  const whole = h("div", { class: "look-text", dir: "auto" }, text || "(empty)");
  const letters = Array.from(text); // not half of an emoji
  if (letters.length <= FOLDED_TEXT) return whole;
  const start = `${letters.slice(0, FOLDED_TEXT - 20).join("")}…`;
  return h("details", { class: "look-more" }, h("summary", { dir: "auto" }, start), whole);
}

function thumbnail(payload, look, id) {
  const { width, height } = look;
  const canvas = h("canvas", {
    class: "thumbnail",
    role: "img",
    "aria-label": `Example ${id}${look.note ? `, ${look.note}` : ""}`,
    width,
    height,
  });
  const share = THUMBNAIL / Math.max(width, height); // small images are drawn larger, each pixel as a square
  canvas.style.width = `${Math.max(1, Math.round(width * share))}px`;
  canvas.style.height = `${Math.max(1, Math.round(height * share))}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  column(payload, look.pixels).forEach((pixel, i) => {
    image.data.set([(pixel >> 16) & 255, (pixel >> 8) & 255, pixel & 255, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

const THUMBNAIL = 48;
const FOLDED_TEXT = 160;

/** How to have thumbnails or texts, where there are none; why there are none, where none could be shown. */
function howToSee(examples) {
  const { looks } = examples;
  if (looks.some((look) => !look.reason)) return "";
  if (looks.length) return h("p", { class: "quiet small" }, `None of the ${plural(looks.length, "example")} could be shown.`);
  return h(
    "p",
    { class: "quiet small" },
    "To see them here as thumbnails or text: ",
    h("code", {}, "ls.ExampleLedger(show=dataset)"),
    ", or afterwards ",
    h("code", {}, "run.show_examples(dataset)"),
    ".",
  );
}

/** Confidence against variability, as in dataset cartography (arXiv 2009.10795). */
function mapPanel(payload) {
  const { map, every, n } = payload.examples;
  const box = h("div", { class: "plot" });
  whenVisible(box, () => {
    const [confidence, variability, correctness] = ["confidence", "variability", "correctness"].map((name) =>
      column(payload, map[name]),
    );
    const points = map.ids.map((id, i) => ({
      x: variability[i],
      y: confidence[i],
      colour: mixed(correctness[i]),
      title: `${id}: mean p ${num(confidence[i])}, right ${percent(correctness[i])}`,
    }));
    box.replaceChildren(
      scatter(
        points,
        { title: "Data map", x: "variability of p(label)", y: "mean p(label)", radius: 2.6 },
        box.clientWidth,
        340,
      ),
    );
  });
  return h(
    "div",
    { class: "panel", id: "panel-data-map" },
    h(
      "header",
      { class: "panel-head" },
      h(
        "div",
        { class: "panel-title" },
        h("h3", {}, "Data map"),
        h(
          "p",
          { class: "meaning" },
          `${every > 1 ? `Every ${every}th of ` : ""}${plural(n, "example")}. Upper left: easy; lower left: hard or mislabelled; right: undecided. Colour: share right, purple 0 to yellow 1.`,
        ),
      ),
    ),
    box,
  );
}

function mixed(share) {
  const at = 3 * Math.round(255 * clamp(share, 0, 1));
  return `rgb(${SEQUENTIAL_COLOURS[at]} ${SEQUENTIAL_COLOURS[at + 1]} ${SEQUENTIAL_COLOURS[at + 2]})`;
}

/** Black or white, whichever is easier to read on a colour of the scale. */
function readable(share) {
  const at = 3 * Math.round(255 * clamp(share, 0, 1));
  const [r, g, b] = [0, 1, 2].map((i) => {
    const part = SEQUENTIAL_COLOURS[at + i] / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

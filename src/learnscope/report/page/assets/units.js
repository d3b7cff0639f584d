// An audit's units by bits, and its robustness.

/** Units down, bits across: the damage of each unit alone at that width. */
function unitsPart(payload) {
  const { units, chosen } = payload.audit;
  const part = h(
    "section",
    { class: "part", id: "units", "aria-labelledby": "units-head" },
    h("h2", { id: "units-head" }, "Layers by bits"),
  );
  if (!units.length) {
    part.append(
      h(
        "p",
        { class: "quiet" },
        `Single layers were not quantised one by one: ${payload.audit.missing.sensitivity || "ls.BitSensitivity() does"}.`,
      ),
    );
    return part;
  }
  const widths = [...new Set(units.flatMap((unit) => unit.options.map((each) => each.bits)))].sort((a, b) => b - a);
  const values = units.flatMap((unit) => unit.options.map((each) => each.damage)).filter((value) => value > 0);
  const [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const cell = (unit, bits) => {
    const each = unit.options.find((option) => option.bits === bits);
    const mine = chosen[unit.name] === bits ? " chosen" : "";
    if (!each) return h("td", { class: "heat hatch-cell" }, h("span", { class: "unseen" }, "not measured"));
    if (each.damage === null) return h("td", { class: `heat broken-cell${mine}`, title: each.reason }, "not finite");
    const share = each.damage > 0 ? clamp((Math.log10(each.damage) - low) / (high - low || 1), 0, 1) : 0;
    return h(
      "td",
      {
        class: `heat${mine}`,
        style: {
          background: each.damage > 0 ? mixed(share) : "var(--zero-cell)",
          color: each.damage > 0 ? readable(share) : "var(--ink)",
        },
        title: `${unit.name} at ${bits} bits: ${num(each.damage)}${each.read_off ? ", read off between the widths that were measured" : ""}`,
      },
      each.read_off ? `≈ ${num(each.damage)}` : num(each.damage),
    );
  };
  const body = h("div", {});
  const draw = () => {
    const shown = units.filter((unit) => matches(unit.name));
    body.replaceChildren(
      shown.length
        ? h(
            "div",
            { class: "table-box", tabindex: 0, role: "region", "aria-label": "Layers by bits" },
            h(
              "table",
              { class: "heat-table" },
              h(
                "thead",
                {},
                h(
                  "tr",
                  {},
                  h("th", { scope: "col" }, "unit"),
                  widths.map((bits) => h("th", { scope: "col", class: "right" }, `${bits} bits`)),
                ),
              ),
              h(
                "tbody",
                {},
                shown.map((unit) =>
                  h(
                    "tr",
                    {},
                    h("th", { scope: "row", title: unit.name }, short(unit.name, 48)),
                    widths.map((bits) => cell(unit, bits)),
                  ),
                ),
              ),
            ),
          )
        : h("p", { class: "quiet" }, "No unit matches the search."),
    );
  };
  when("search", draw);
  draw();
  append(part, [
    h(
      "div",
      { class: "panel wide", id: "panel-units" },
      h(
        "header",
        { class: "panel-head" },
        h(
          "div",
          { class: "panel-title" },
          h(
            "p",
            { class: "meaning" },
            `${payload.audit.sensitivity_measure} of the model with this unit alone at these bits, ${payload.audit.sensitivity_on}; yellow is most. Framed: the width that the search chose.`,
          ),
        ),
        h(
          "div",
          { class: "tools" },
          copyMenu(
            () =>
              units.flatMap((unit) =>
                unit.options.map((each) => ({
                  unit: unit.name,
                  bits: each.bits,
                  damage: each.damage,
                  bytes: each.bytes,
                })),
              ),
            { pandas: "run.frame('BitSensitivity')" },
          ),
        ),
      ),
      body,
    ),
  ]);
  return part;
}

function robustnessPart(payload) {
  const { robustness, missing } = payload.audit;
  const part = h(
    "section",
    { class: "part", id: "robustness", "aria-labelledby": "robustness-head" },
    h("h2", { id: "robustness-head" }, "Robustness"),
  );
  const interval = (each, write = percent) =>
    each.value === null
      ? each.reason || "n/a"
      : `${write(each.value)}${each.low !== null ? ` (${write(each.low)} to ${write(each.high)})` : ""}`;
  append(part, [promptsPanel(robustness, missing)]);
  if (robustness.threat)
    part.append(
      h(
        "p",
        { class: "threat" },
        h("strong", {}, `Threat model: attacks on the ${robustness.target}. `),
        robustness.threat,
      ),
    );
  if (!robustness.attacks.length && !robustness.noise.length && !robustness.prompts)
    part.append(
      h("p", { class: "quiet" }, `Not measured: ${missing.attacks || "ls.Attacks() and ls.NoiseRobustness() do"}.`),
    );
  if (robustness.attacks.length) {
    const box = h("div", { class: "plot" });
    const groups = [...new Set(robustness.attacks.map((a) => `${a.name}, ${a.norm}`))];
    const dots = robustness.attacks.map((a) => ({
      x: a.epsilon,
      y: a.value,
      low: a.low,
      high: a.high,
      place: groups.indexOf(`${a.name}, ${a.norm}`),
      label: groups.length < 12 ? a.name : "",
      title: `${a.name} ${a.norm} epsilon ${num(a.epsilon)} (${a.unit}), ${a.steps} steps: ${interval(a)}`,
    }));
    if (robustness.clean?.value !== null && robustness.clean)
      dots.push({
        x: 0,
        y: robustness.clean.value,
        low: robustness.clean.low,
        high: robustness.clean.high,
        label: "clean",
        place: 5,
        title: `without an attack: ${interval(robustness.clean)}`,
      });
    whenVisible(box, () =>
      box.replaceChildren(
        scatter(
          dots,
          {
            title: "Accuracy under attack",
            x: `epsilon (${robustness.attacks[0].unit})`,
            y: "accuracy",
            formatY: percent,
          },
          box.clientWidth,
          300,
        ),
      ),
    );
    append(part, [
      h(
        "div",
        { class: "panel wide", id: "panel-attacks" },
        h("h3", {}, "Accuracy under attack"),
        h(
          "p",
          { class: "meaning" },
          robustness.gap
            ? `Gap to the clean accuracy: ${interval(robustness.gap)}; up to ${percent(robustness.gap_limit)} counts as robust. ${robustness.on}.`
            : "",
        ),
        box,
      ),
    ]);
  }
  append(part, [autoattackPanel(robustness.autoattack)]);
  if (robustness.noise.length) {
    append(part, [
      h(
        "div",
        { class: "panel wide", id: "panel-noise" },
        h("h3", {}, "Noise and damaged inputs"),
        table(
          [
            { key: "name", label: "what" },
            { key: "level", label: "level" },
            { key: "accuracy", label: "accuracy", align: "right", format: (v) => interval(v) },
            { key: "loss", label: "loss", align: "right", format: (v) => interval(v, num) },
            { key: "kl", label: "mean KL", align: "right", format: (v) => interval(v, num) },
          ],
          robustness.noise,
          { label: "Noise" },
        ),
      ),
    ]);
  }
  if (robustness.transfer.length) {
    const bits = (n) => (n ? `${n} bits` : "as stored");
    append(part, [
      folded("Attacks across bit widths", () =>
        table(
          [
            { key: "made", label: "attack made at", format: bits },
            { key: "tested", label: "tested at", format: bits },
            { key: "value", label: "accuracy", align: "right", format: (_, row) => interval(row) },
          ],
          robustness.transfer,
          { label: "Attacks across bit widths" },
        ),
      ),
    ]);
  }
  return part;
}

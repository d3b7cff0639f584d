// The top of a page: the verdict, the findings in their order, and what was checked.

const SEVERITIES = { critical: "Critical", warning: "Warning", info: "Note", ok: "No problems", unknown: "Not judged" };

function verdictCard(payload) {
  const { verdict } = payload;
  return h(
    "section",
    { class: `verdict ${verdict.severity}`, id: "verdict", "aria-label": "Verdict" },
    icon(verdict.severity),
    h("div", {}, h("p", { class: "kicker" }, SEVERITIES[verdict.severity]), h("h1", {}, verdict.sentence)),
  );
}

function tiles(payload) {
  const { verdict } = payload;
  const { counts, checked, best } = verdict;
  const found = [
    ["critical", "critical"],
    ["warning", "warning"],
    ["info", "note"],
  ]
    .filter(([key]) => counts[key])
    .map(([key, word]) => plural(counts[key], word).replace("criticals", "critical"));
  const tile = (label, value, note, onclick) =>
    h(
      onclick ? "button" : "div",
      { class: "tile", type: onclick ? "button" : null, onclick },
      h("span", { class: "tile-label" }, label),
      h("span", { class: "tile-value" }, value),
      h("span", { class: "tile-note" }, note || "\u00a0"),
    );
  const lossText = verdict.loss ? verdict.loss[1] : "not logged";
  return h(
    "div",
    { class: "tiles" },
    tile("Status", verdict.status, verdict.seconds ? duration(verdict.seconds) : ""),
    tile("Last step", whole(verdict.last_step), ""),
    tile(
      "Best step",
      best ? whole(best.step) : "unknown",
      best ? `${best.name} ${num(best.value)}` : "no holdout was measured",
      best ? () => moveCursor(best.step) : null,
    ),
    tile("Training loss", lossText, verdict.loss ? `from ${verdict.loss[0]}` : ""),
    tile(
      "Findings",
      found.length ? found.join(", ") : "none",
      `${checked.passed} checks passed, ${checked["not measured"]} not measured`,
    ),
  );
}

function findingsPart(payload) {
  const shown = payload.findings;
  return h(
    "section",
    { class: "part", id: "findings", "aria-labelledby": "findings-head" },
    h("h2", { id: "findings-head" }, "Findings", h("span", { class: "count" }, String(shown.length))),
    shown.length
      ? findingsList(payload, shown)
      : h("p", { class: "quiet" }, "Nothing was found. What was looked at, and what was not, is listed below."),
  );
}

/** All problems, and a few of the notes; the other notes are folded. */
function findingsList(payload, shown) {
  const items = shown.map((finding, i) => ({ finding, number: i + 1 }));
  const list = (part) =>
    h(
      "ol",
      { class: "findings" },
      part.map(({ finding, number }) => findingItem(payload, finding, number)),
    );
  const grave = items.filter(({ finding }) => finding.severity !== "info").length;
  const first = Math.max(grave, Math.min(items.length, grave + NOTES));
  const rest = items.slice(first);
  if (rest.length < 3) return list(items);
  const more = folded(`${plural(rest.length, "more note")}`, () => list(rest), {
    id: "more-findings",
    class: "folded bare",
  });
  if (rest.some(({ finding }) => state.open.includes(finding.fingerprint))) more.fill();
  return [list(items.slice(0, first)), more];
}

const NOTES = 4;

function findingItem(payload, finding, number) {
  const details = h("details", {
    class: `finding ${finding.acknowledged !== null ? "settled" : finding.severity}`,
    id: `finding-${finding.fingerprint}`,
    open: state.open.includes(finding.fingerprint),
  });
  const span = finding.steps ? steps(finding.steps[0], finding.steps[1]) : "";
  const marks = [finding.acknowledged !== null ? "acknowledged" : null, finding.against].filter(Boolean);
  details.append(
    h(
      "summary",
      {},
      h(
        "span",
        { class: `badge ${finding.severity}` },
        icon(finding.severity),
        h("span", { class: "unseen" }, `${SEVERITIES[finding.severity]}:`),
      ),
      h("span", { class: "finding-number", "aria-hidden": "true" }, number),
      h(
        "span",
        { class: "finding-title" },
        finding.title,
        marks.map((mark) => h("span", { class: "pill" }, mark)),
      ),
      h("span", { class: "finding-steps" }, span),
      sparkline(finding.spark, finding.steps),
    ),
  );
  details.append(
    h(
      "div",
      { class: "finding-body" },
      h("p", {}, finding.detail),
      h("p", { class: "advice" }, h("strong", {}, "What to do. "), finding.advice),
      finding.explains.length
        ? h(
            "div",
            { class: "explains" },
            h("strong", {}, "This explains"),
            h(
              "ul",
              {},
              finding.explains.map((each) =>
                h("li", {}, `${each.title}. `, h("span", { class: "quiet" }, each.detail)),
              ),
            ),
          )
        : null,
      finding.more.map(([heading, text]) => h("p", {}, h("strong", {}, `${heading}. `), text)),
      h("p", { class: "evidence" }, "Evidence: ", finding.evidence, ". ", stepIds(payload, finding)),
      finding.pandas ? code(finding.pandas) : null,
      h(
        "p",
        { class: "finding-tools" },
        finding.panel
          ? h(
              "button",
              {
                type: "button",
                class: "button",
                "data-show": finding.fingerprint,
                onclick: () => showFinding(payload, finding),
              },
              finding.steps ? "Show in its panel" : "Show its panel",
            )
          : null,
        h(
          "button",
          {
            type: "button",
            class: "button plain",
            onclick: (event) => copy(JSON.stringify(finding, null, 1), event.currentTarget),
          },
          "Copy as JSON",
        ),
        h("span", { class: "quiet" }, `fingerprint ${finding.fingerprint}`),
      ),
    ),
  );
  details.addEventListener("toggle", () => {
    const others = state.open.filter((each) => each !== finding.fingerprint);
    state.open = details.open ? [...others, finding.fingerprint] : others;
    changed("open");
  });
  return h("li", {}, details);
}

function stepIds(payload, finding) {
  const known = finding.steps && payload.step_examples?.[String(finding.steps[0])];
  return known
    ? `Examples of step ${whole(finding.steps[0])}: ${known.ids.slice(0, 16).join(", ")}${known.ids.length > 16 || known.more ? "…" : ""}.`
    : "";
}

/** Opens the panel of a finding at its steps, with a little around them. */
function showFinding(payload, finding) {
  if (payload.audit && auditPlace(finding)) {
    goTo(auditPlace(finding));
    return;
  }
  const room = finding.steps ? Math.max(3, (finding.steps[1] - finding.steps[0]) * 0.25) : 0;
  const first = finding.steps ? Math.max(0, finding.steps[0] - room) : null;
  const span = finding.steps ? [first, finding.steps[1] + room] : null;
  if (finding.steps) moveCursor(finding.steps[0]);
  if (finding.view === "grid") {
    const part =
      document.getElementById("modules") && moduleGrids(payload).some((body) => body.id === finding.panel)
        ? "modules"
        : "layers";
    choose("grid", part, finding.panel);
    if (finding.row) choose("row", part, finding.row);
    if (span) zoomTo(part, span);
    goTo(part);
    return;
  }
  if (span) zoomTo(finding.panel, span);
  goTo(`panel-${finding.panel}`);
}

const STATES = {
  failed: "failed",
  "not measured": "not measured",
  passed: "passed",
  "not applicable": "does not apply",
};

function checksPart(payload) {
  const by = (name) => payload.checks.filter((check) => check.state === name);
  const say = h("div", { class: "check-say", role: "status" });
  const chip = (check) =>
    h(
      "button",
      {
        type: "button",
        class: `check ${check.state.replace(" ", "-")}`,
        title: check.reason,
        onclick: () =>
          say.replaceChildren(
            h("p", {}, h("strong", {}, check.name), ` (${STATES[check.state]}): ${check.reason}`),
            check.how ? code(check.how) : "",
          ),
      },
      h("i", { class: `state ${check.state.replace(" ", "-")}`, "aria-hidden": "true" }),
      check.name,
      h("span", { class: "unseen" }, `, ${STATES[check.state]}`),
    );
  const group = (name) =>
    by(name).length
      ? h(
          "div",
          { class: "check-group" },
          h("h3", {}, `${STATES[name]} `, h("span", { class: "count" }, String(by(name).length))),
          h("div", { class: "checks" }, by(name).map(chip)),
        )
      : null;
  const missing = by("not measured");
  return h(
    "section",
    { class: "part", id: "checks", "aria-labelledby": "checks-head" },
    h("h2", { id: "checks-head" }, "What was checked"),
    group("failed"),
    group("not measured"),
    group("passed"),
    say,
    missing.length
      ? folded(`How to measure the ${missing.length === 1 ? "other one" : `other ${missing.length}`}`, () =>
          table(
            [
              { key: "name", label: "check" },
              { key: "reason", label: "what is missing" },
              { key: "how", label: "how to enable", format: (text) => h("code", {}, text) },
            ],
            missing,
            { label: "Checks that lack numbers" },
          ),
        )
      : null,
    by("not applicable").length
      ? folded(
          `${plural(by("not applicable").length, "check")} that ${by("not applicable").length === 1 ? "does" : "do"} not apply`,
          () =>
            table(
              [
                { key: "name", label: "check" },
                { key: "reason", label: "why" },
              ],
              by("not applicable"),
              { label: "Checks that do not apply" },
            ),
        )
      : null,
  );
}

// The mix of bit widths for a budget, solved in the page.

/** The mix of widths with the least summed damage in at most `most` bytes: dynamic programming over sizes. */
function solveBudget(units, most) {
  const options = units.map((unit) => unit.options.filter((each) => each.damage !== null && each.bytes !== null));
  if (options.some((list) => !list.length)) return null;
  // what every unit takes at least is paid first: only the rest has to be divided
  const floor = options.map((list) => Math.min(...list.map((each) => each.bytes)));
  const room = most - floor.reduce((sum, each) => sum + each, 0);
  if (room < 0) return null;
  const { slot, slots } = slotsFor(options, floor, room);
  const need = (each, unit) => Math.ceil((each.bytes - floor[unit]) / slot - 1e-9);
  let best = new Float64Array(slots + 1);
  const chosen = options.map((list, unit) => {
    const next = new Float64Array(slots + 1).fill(Infinity),
      pick = new Uint8Array(slots + 1);
    list.forEach((each, place) => {
      for (let used = need(each, unit), from = 0; used <= slots; used++, from++) {
        if (best[from] + each.damage < next[used]) {
          next[used] = best[from] + each.damage;
          pick[used] = place;
        }
      }
    });
    best = next;
    return pick;
  });
  const mix = new Array(units.length);
  let used = slots,
    total = 0;
  for (let unit = units.length - 1; unit >= 0; unit--) {
    const each = options[unit][chosen[unit][used]];
    mix[unit] = each.bits;
    total += each.bytes;
    used -= need(each, unit);
  }
  return { mix: Object.fromEntries(units.map((unit, i) => [unit.name, mix[i]])), bytes: total, damage: best[slots] };
}

/** Slots of the sizes' greatest common divisor, where these are few: then the answer is exact. Else sizes round up. */
function slotsFor(options, floor, room) {
  const extra = options
    .flatMap((list, unit) => list.map((each) => each.bytes - floor[unit]))
    .filter((each) => each > 0);
  const divisor = extra.every(Number.isInteger)
    ? extra.reduce((a, b) => {
        while (b) [a, b] = [b, a % b];
        return a;
      }, 0)
    : 0;
  const all = options.reduce((sum, list, unit) => sum + Math.max(...list.map((each) => each.bytes)) - floor[unit], 0);
  const useful = Math.min(room, all);
  if (divisor && useful / divisor <= 20000) return { slot: divisor, slots: Math.floor(useful / divisor + 1e-9) };
  return { slot: useful / 6000 || 1, slots: useful ? 6000 : 0 };
}

function budgetPanel(payload) {
  const { units, rest_bytes: rest } = payload.audit;
  const usable = units.filter((unit) => unit.options.some((each) => each.damage !== null && each.bytes !== null));
  if (!usable.length || usable.length < units.length) return null;
  const ends = (pick) =>
    usable.reduce(
      (sum, unit) =>
        sum +
        pick(unit.options.filter((each) => each.bytes !== null && each.damage !== null).map((each) => each.bytes)),
      0,
    );
  const low = ends((list) => Math.min(...list)),
    high = ends((list) => Math.max(...list)),
    other = rest ?? 0;
  const start =
    payload.audit.configurations.find((item) => item.recommended)?.bytes ?? low + 0.35 * (high - low) + other;
  const chosen = () => clamp(numberOr(state.pick.budget ?? null, start), low + other, high + other);
  let known = { at: null, result: null };
  const answer = () => {
    if (known.at !== chosen()) {
      const solved = solveBudget(usable, chosen() - other);
      known = { at: chosen(), result: solved ? { ...solved, bytes: solved.bytes + other } : null };
    }
    return known.result;
  };
  const slider = h("input", {
    type: "range",
    id: "budget",
    min: low + other,
    max: high + other,
    step: Math.max(1, (high - low) / 500),
    value: chosen(),
    oninput: (event) => choose("pick", "budget", Number(event.target.value)),
  });
  const out = h("div", { class: "budget-answer", role: "status" });
  const show = () => {
    slider.value = chosen();
    const solved = answer();
    const counts = new Map();
    if (solved) Object.values(solved.mix).forEach((bits) => counts.set(bits, (counts.get(bits) || 0) + 1));
    const said = [...counts]
      .sort((a, b) => b[0] - a[0])
      .map(([bits, n]) => `${bits} bits for ${plural(n, "unit")}`)
      .join(", ");
    out.replaceChildren(
      h(
        "p",
        {},
        h("strong", { id: "budget-size" }, solved ? bytes(solved.bytes) : bytes(chosen())),
        solved
          ? ` · summed ${payload.audit.sensitivity_measure} ${num(solved.damage)} · ${said}`
          : " · nothing fits into this",
      ),
      solved ? code(JSON.stringify(solved.mix), "Copy the mix") : "",
    );
  };
  when("pick", show);
  show();
  return {
    answer,
    element: h(
      "div",
      { class: "panel wide", id: "panel-budget" },
      h("h3", {}, h("label", { for: "budget" }, "Try a budget")),
      h(
        "p",
        { class: "meaning" },
        `The mix with the least sum of the damages of single units, ${payload.audit.sensitivity_on}. Damages do not simply add up: measure the mix before you ship it.${rest === null ? " Sizes are of these units alone." : ""}`,
      ),
      h(
        "div",
        { class: "budget" },
        h("span", { class: "quiet" }, bytes(low + other)),
        slider,
        h("span", { class: "quiet" }, bytes(high + other)),
      ),
      out,
    ),
  };
}

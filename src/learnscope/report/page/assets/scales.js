// From values to colours: the scales of heatmaps, and their keys.

// viridis at 16 places, and a diverging scale (blue, grey, vermilion) for differences
const VIRIDIS = [
  "#440154",
  "#48186a",
  "#472d7b",
  "#424086",
  "#3b528b",
  "#33638d",
  "#2c728e",
  "#26828e",
  "#21918c",
  "#1fa088",
  "#28ae80",
  "#3fbc73",
  "#5ec962",
  "#84d44b",
  "#addc30",
  "#fde725",
];
const DIVERGING = ["#0b4f8a", "#2b7bba", "#6cade0", "#b3d3ee", "#e9ecef", "#f6cdb6", "#eb9a6d", "#d5622f", "#a63c06"];

function palette(stops) {
  const out = new Uint8Array(256 * 3);
  const parts = stops.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (parts.length - 1),
      left = Math.min(Math.floor(at), parts.length - 2);
    for (let c = 0; c < 3; c++) out[3 * i + c] = parts[left][c] + (at - left) * (parts[left + 1][c] - parts[left][c]);
  }
  return out;
}

const SEQUENTIAL_COLOURS = palette(VIRIDIS);
const DIVERGING_COLOURS = palette(DIVERGING);

/** How values become colours: linear or logarithmic, or around 0 for differences. */
function colourScale(grids, { scale, diverging }) {
  let low = Infinity,
    high = -Infinity,
    positive = Infinity,
    zero = false,
    missing = false,
    broken = false;
  for (const grid of grids) {
    for (const list of grid.low === grid.high ? [grid.high] : [grid.low, grid.high]) {
      for (const value of list) {
        if (Number.isNaN(value)) missing = true;
        else if (value === Infinity || value === -Infinity) broken = true;
        else {
          if (value < low) low = value;
          if (value > high) high = value;
          if (value > 0 && value < positive) positive = value;
          if (value === 0) zero = true;
        }
      }
    }
  }
  if (low > high) return { empty: true, missing, broken, of: () => 0, ticks: [] };
  if (diverging) {
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return {
      diverging,
      missing,
      broken,
      low: -most,
      high: most,
      of: (v) => 0.5 + v / (2 * most),
      ticks: [-most, 0, most],
    };
  }
  const log = low >= 0 && positive < Infinity && (scale === "log" || high / positive > 1000);
  if (log) {
    const from = Math.max(Math.log10(positive), Math.log10(high) - 12),
      to = Math.max(Math.log10(high), from + 1e-6);
    return {
      log,
      zero,
      missing,
      broken,
      low: 10 ** from,
      high,
      of: (v) => (Math.log10(v) - from) / (to - from),
      ticks: logTicks(from, to),
    };
  }
  const [a, b] =
    scale === "share" && low >= 0 && high <= 1 ? [0, Math.max(high, 1e-9)] : [low, high > low ? high : low + 1];
  return { missing, broken, low: a, high: b, of: (v) => (v - a) / (b - a), ticks: ticks(a, b, 5) };
}

/** The colours with their values, and what the other signs mean. */
function colourBar(scale, write = num) {
  if (scale.empty)
    return h(
      "div",
      { class: "colour-bar" },
      keyOf("hatch", "not measured", scale.missing),
      keyOf("broken", "not finite", scale.broken),
    );
  const stops = scale.diverging ? DIVERGING : VIRIDIS;
  const marks = scale.ticks.filter((tick) => scale.of(tick) >= -0.001 && scale.of(tick) <= 1.001);
  return h(
    "div",
    { class: "colour-bar" },
    h(
      "div",
      { class: "ramp-and-ticks" },
      h("div", { class: "ramp", style: { background: `linear-gradient(to right, ${stops.join(",")})` } }),
      h(
        "div",
        { class: "ramp-ticks" },
        marks.map((tick) => {
          const share = clamp(scale.of(tick), 0, 1);
          return h(
            "span",
            { class: share < 0.05 ? "first" : share > 0.95 ? "last" : null, style: { left: `${100 * share}%` } },
            write(tick),
          );
        }),
      ),
    ),
    keyOf("zero-cell", "exactly 0", scale.log && scale.zero),
    keyOf("hatch", "not measured", scale.missing),
    keyOf("broken", "not finite", scale.broken),
  );
}

function keyOf(name, text, there) {
  return there ? h("span", { class: "bar-key" }, h("i", { class: `box ${name}` }), text) : null;
}

// The payload: JSON and columns of numbers, and curves at any level of detail without losing a spike.

const FANOUT = 4;

/** Base64 text to the payload. */
async function unpackText(text) {
  const raw = atob(text.trim());
  const packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  return unpack(packed);
}

/** Compressed bytes to the payload, with its columns as `payload.columns`. */
async function unpack(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const view = new DataView(buffer);
  const [length, floats, integers] = [0, 4, 8].map((at) => view.getUint32(at, true));
  const payload = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 12, length)));
  const bytesOf = (at, n) => joined(new Uint8Array(buffer, at, 4 * n), n);
  payload.columns = {
    f: new Float32Array(bytesOf(12 + length, floats)),
    i: new Int32Array(bytesOf(12 + length + 4 * floats, integers)),
  };
  return payload;
}

/** Numbers are stored as all first bytes, then all second ones and so on. */
function joined(planes, n) {
  const out = new Uint8Array(4 * n);
  for (let plane = 0; plane < 4; plane++) {
    for (let i = 0, at = plane, from = plane * n; i < n; i++, at += 4) out[at] = planes[from + i];
  }
  return out.buffer;
}

/** The numbers behind a reference of the JSON. */
function column(payload, ref) {
  if (ArrayBuffer.isView(ref)) return ref; // of a live page
  const [type, start, length] = ref;
  if (type === "s") return Float64Array.from({ length: ref[3] }, (_, i) => start + i * length);
  if (type === "n") return Float64Array.from(start);
  return payload.columns[type].subarray(start, start + length);
}

/** A curve of the payload: steps and values, and coarser levels of it that are made when they are needed. */
class Curve {
  constructor(payload, body) {
    this.name = body.name;
    this.place = body.place;
    this.n = body.n;
    this.per = body.per || 1;
    this.steps = column(payload, body.steps);
    const exact = body.v ? column(payload, body.v) : null;
    this.low = exact || column(payload, body.low);
    this.high = exact || column(payload, body.high);
    this.mean = exact || column(payload, body.mean);
    this.last = body.last ?? (this.steps.length ? this.steps[this.steps.length - 1] : 0);
    this.bad = body.bad ? Array.from(column(payload, body.bad)) : [];
    this.levels = [this];
    this.smoothed = new Map();
  }

  get first() {
    return this.steps.length ? this.steps[0] : 0;
  }

  level(number) {
    while (this.levels.length <= number) this.levels.push(coarser(this.levels[this.levels.length - 1]));
    return this.levels[number];
  }

  /** The finest level with at most so many buckets between two steps, and which of its buckets these are. */
  view(first, last, most) {
    for (let number = 0; ; number++) {
      const level = this.level(number);
      const from = Math.max(0, place(level.steps, first) - 1);
      const to = Math.min(level.steps.length, place(level.steps, last, true) + 1);
      if (to - from <= Math.max(most, 4) || level.steps.length <= 4) return { level, from, to };
    }
  }

  /** The measurement at or before a step: its place, or -1. */
  at(step) {
    return place(this.steps, step, true) - 1;
  }

  /** An exponential moving average over the measurements; gaps stay gaps. */
  smooth(weight) {
    if (!this.smoothed.has(weight)) {
      const out = new Float32Array(this.mean.length);
      let level = 0,
        seen = 0;
      for (let i = 0; i < out.length; i++) {
        const value = this.mean[i];
        if (!Number.isFinite(value)) {
          out[i] = NaN;
          continue;
        }
        level = weight * level + (1 - weight) * value;
        seen = weight * seen + (1 - weight);
        out[i] = level / seen;
      }
      const plain = { steps: this.steps, low: out, high: out, mean: out, last: this.last, bad: [], n: this.n };
      const curve = Object.assign(Object.create(Curve.prototype), plain, { name: this.name, smoothed: new Map() });
      curve.levels = [curve];
      this.smoothed.set(weight, curve);
    }
    return this.smoothed.get(weight);
  }
}

/** The first place whose step is not below `step` (with `after`: above it). Steps ascend. */
function place(list, step, after = false) {
  let low = 0,
    high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < step || (after && list[middle] === step)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Neighbouring buckets as one: the lowest, the highest, the mean of what is there. */
function coarser(level) {
  const n = Math.ceil(level.steps.length / FANOUT);
  const out = {
    steps: new Float64Array(n),
    low: new Float32Array(n),
    high: new Float32Array(n),
    mean: new Float32Array(n),
  };
  for (let bucket = 0; bucket < n; bucket++) {
    let low = NaN,
      high = NaN,
      sum = 0,
      count = 0;
    const end = Math.min(level.steps.length, (bucket + 1) * FANOUT);
    for (let i = bucket * FANOUT; i < end; i++) {
      if (!Number.isNaN(level.low[i])) {
        low = low <= level.low[i] ? low : level.low[i];
        high = high >= level.high[i] ? high : level.high[i];
        sum += level.mean[i];
        count++;
      }
    }
    out.steps[bucket] = level.steps[bucket * FANOUT];
    out.low[bucket] = low;
    out.high[bucket] = high;
    out.mean[bucket] = count ? sum / count : NaN;
  }
  return out;
}

/** Points for a line: of a bucket with a range its two ends, the nearer one to the line first. */
function linePoints({ level, from, to }, end, positive) {
  const xs = [],
    ys = [];
  let before = NaN;
  for (let i = from; i < to; i++) {
    let low = level.low[i],
      high = level.high[i];
    if (positive) {
      if (high <= 0) {
        low = NaN;
        high = NaN;
      } else if (low <= 0) low = high;
    }
    const step = level.steps[i];
    if (!Number.isFinite(low) || !Number.isFinite(high)) {
      xs.push(step);
      ys.push(null);
      before = NaN;
      continue;
    }
    if (low === high) {
      xs.push(step);
      ys.push(low);
      before = low;
      continue;
    }
    const next = i + 1 < level.steps.length ? level.steps[i + 1] : end;
    const up = Number.isNaN(before) || Math.abs(before - low) <= Math.abs(before - high);
    xs.push(step, step + (next - step) / 2);
    ys.push(up ? low : high, up ? high : low);
    before = up ? high : low;
  }
  return [xs, ys];
}

/** A grid of the payload: rows are scopes, columns one or more measurements each. */
class Grid {
  constructor(payload, body) {
    Object.assign(this, body);
    this.starts = column(payload, body.steps);
    this.high = column(payload, body.high);
    this.low = body.low ? column(payload, body.low) : this.high;
    this.width = this.starts.length;
  }

  get first() {
    return this.starts[0];
  }

  /** Where the columns end: the last one is as wide as the one before. */
  get end() {
    const n = this.width;
    return Math.max(
      this.last + 1,
      n > 1 ? this.starts[n - 1] + (this.starts[n - 1] - this.starts[n - 2]) : this.last + 1,
    );
  }

  row(scope) {
    const at = this.scopes.indexOf(scope);
    return {
      low: this.low.subarray(at * this.width, (at + 1) * this.width),
      high: this.high.subarray(at * this.width, (at + 1) * this.width),
    };
  }

  /** A row as a curve. */
  curve(scope) {
    const { low, high } = this.row(scope);
    const bad = [];
    const finite = (each) => Float32Array.from(each, (value) => (Number.isFinite(value) ? value : NaN));
    for (let i = 0; i < this.width; i++)
      if (high[i] === Infinity) bad.push(this.starts[i], i + 1 < this.width ? this.starts[i + 1] - 1 : this.last);
    const [lows, highs] = this.low === this.high ? [finite(high), finite(high)] : [finite(low), finite(high)];
    const mean = Float32Array.from(lows, (value, i) => (value + highs[i]) / 2);
    const body = {
      name: scope,
      n: this.n,
      per: this.per,
      steps: this.starts,
      low: lows,
      high: highs,
      mean,
      last: this.last,
      bad,
    };
    const curve = Object.assign(Object.create(Curve.prototype), body, { smoothed: new Map() });
    curve.levels = [curve];
    return curve;
  }
}

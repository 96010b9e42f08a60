// The columns of a row as the model's features: the same rules as preprocess.py, whose patterns and tables are in `page`.
const { patterns, own_words: ownWords, zone } = page;
const whole = (pattern) => new RegExp(`^(?:${pattern.replaceAll(".*", "[^\\n]*")})$`, "u");
const NUMBER = whole(patterns.NUMBER);
const WHOLE = whole(patterns.WHOLE);
const EXPONENT = whole(patterns.EXPONENT);
const TIMESTAMP = whole(patterns.TIMESTAMP);
const TIME = whole(patterns.TIME);
const DAY = whole(patterns.DAY);
const TRUE = whole(patterns.TRUE);
const FALSE = whole(patterns.FALSE);
const EDGES = new RegExp(`^${patterns.SPACE}+|${patterns.SPACE}+$`, "gu");
const LINE_BREAK = new RegExp(patterns.LINE_BREAK, "gu");
const UTC = { changes: [], offsets: [0], first: 0, cycle: 1 };
const DAY_SECONDS = 86400;
const MOST_BINS = 2 ** 53;

const vocabularies = Object.fromEntries(
  Object.entries(page.vocabularies).map(([name, lines]) => [name, new Map(lines.map((line, id) => [line, id]))]),
);

function features(row) {
  const values = {};
  for (const column of content.raw_features) {
    if (!Object.hasOwn(row, column.name)) {
      throw new InputError(`a row has no column '${column.name}'; give each column, null where its value is missing`);
    }
    values[column.name] = asRead(row[column.name], column);
  }
  for (const column of content.computed_features) values[column.name] = computed(column.tree, values);
  const made = {};
  for (const column of [...content.raw_features, ...content.computed_features]) {
    if (column.learned) Object.assign(made, columnFeatures(column.name, values[column.name], column));
  }
  return made;
}

function columnFeatures(name, value, { column: settings, learned }) {
  if (settings.type === "numeric") return { [name]: scaled(value, learned) };
  if (settings.type === "category") return { [name]: idOf(value || learned.missing, learned) };
  if (settings.type === "text") return { [name]: wordIds(value, settings, learned) };
  const day = value ? seconds(`${value.slice(0, 10)} 00:00:00`) / DAY_SECONDS : NaN;
  const made = {
    [`${name}_days`]: scaled(day, learned),
    [`${name}_month`]: value ? Number(value.slice(5, 7)) : 0,
    [`${name}_weekday`]: value ? ((((day + 3) % 7) + 7) % 7) + 1 : 0,
  };
  if (settings.hour) made[`${name}_hour`] = value ? Number(value.slice(11)) + 1 : 0;
  return made;
}

function scaled(value, learned) {
  if (value < learned.clip_low) value = learned.clip_low; // false if there is none, or if the value is missing
  if (value > learned.clip_high) value = learned.clip_high;
  if (learned.log) value = Math.sign(value) * Math.log1p(Math.abs(value));
  if (!Number.isFinite(value)) value = learned.imputed;
  if (learned.boundaries) return learned.boundaries.filter((boundary) => boundary <= Math.fround(value)).length;
  if (learned.low !== undefined) return divided(value - learned.low, learned.high - learned.low);
  return learned.mean === undefined ? value : divided(value - learned.mean, learned.standard_deviation);
}

function divided(dividend, divisor) {
  return divisor ? dividend / divisor : 0;
}

function wordIds(text, settings, learned) {
  const words = settings.separator === null ? plainWords(text) : text.split(settings.separator).filter(Boolean);
  const terms = [];
  for (let size = 1; size <= settings.ngrams; size++) {
    for (let start = 0; start + size <= words.length; start++) terms.push(words.slice(start, start + size).join(" "));
  }
  const ids = terms.slice(0, settings.words).map((term) => 1 + idOf(term, learned));
  return [...ids, ...Array(settings.words - ids.length).fill(0)];
}

function idOf(value, { vocabulary, unknown }) {
  const known = vocabularies[vocabulary].get(value);
  if (known !== undefined) return known;
  const hash = fingerprint64(new TextEncoder().encode(value));
  return unknown.first_id + Number(hash % BigInt(unknown.buckets));
}

// Values, as values/text.py reads them.

function asRead(value, column) {
  const settings = column.column ?? {};
  if (column.dtype === "float32") {
    const written = asText(value, column.name);
    const found = number(written);
    if (found === null) {
      throw new InputError(`'${column.name}': a number is expected, '${written.slice(0, 40)}' was found`);
    }
    return Math.fround(found);
  }
  const separator = settings.separator ?? null;
  if (Array.isArray(value)) {
    if (separator === null) {
      throw new InputError(`'${column.name}': one value is expected, ${value.length} were found`);
    }
    const texts = value.map((item) => canonical(asText(item, column.name)));
    const wrong = texts.find((text) => text.includes(separator));
    if (wrong !== undefined) {
      throw new InputError(`'${column.name}': a value without '${separator}' is expected, '${wrong.slice(0, 40)}' was found`);
    }
    value = texts.join(separator);
  }
  const text = asText(value, column.name);
  if (settings.type === "date") {
    const day = dayText(text, settings.hour);
    if (day === null) throw new InputError(`'${column.name}': a day YYYY-MM-DD is expected, '${text.slice(0, 40)}' was found`);
    return day;
  }
  if (separator === null) return canonical(text);
  return text.split(separator).map(canonical).filter(Boolean).join(separator);
}

function asText(value, name) {
  if (typeof value === "object" && value !== null) {
    throw new InputError(`'${name}': one value is expected, ${JSON.stringify(value).slice(0, 40)} was found`);
  }
  return value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
}

function strip(text) {
  return text.replace(EDGES, "");
}

function oneLine(text) {
  return strip(text).replace(LINE_BREAK, " ");
}

function canonical(text) {
  text = oneLine(text).normalize("NFC");
  if (/[0-9]$/.test(text) && (/[.eE]/.test(text) || text === "-0")) return canonicalNumber(text);
  const time = TIMESTAMP.exec(text);
  if (time) return timestamp(time);
  if (TRUE.test(text)) return "true";
  return FALSE.test(text) ? "false" : text;
}

function canonicalNumber(text) {
  if (text === "-0") return "0";
  let match = WHOLE.exec(text);
  if (match) return match[1] === "-0" ? "0" : match[1];
  if ((match = EXPONENT.exec(text))) return withoutExponent(match);
  if ((match = TIMESTAMP.exec(text))) return timestamp(match);
  if ((match = TIME.exec(text))) return match[2] ? `${match[1]}.${match[2]}` : match[1];
  return text;
}

function withoutExponent(match) {
  let digits = match[2] + (match[4] ?? "");
  const places = Number(match[7]);
  let point = 1;
  if (match[5] === "-" || match[6] === "-") {
    digits = "0".repeat(places) + digits;
  } else {
    digits += "0".repeat(Math.max(0, places - digits.length + 1));
    point = places + 1;
  }
  const fraction = digits.slice(point).replace(/0+$/, "");
  const found = digits.slice(0, point).replace(/^0+(?=[0-9])/, "") + (fraction ? `.${fraction}` : "");
  return found === "0" ? found : match[1] + found;
}

function number(text) {
  text = strip(text);
  if (!NUMBER.test(text)) {
    text = canonical(text);
    if (text === "true" || text === "false") return Number(text === "true");
    if (patterns.MISSING.includes(text.toLowerCase())) return NaN;
    if (!NUMBER.test(text)) return null;
  }
  const found = Number(text) + 0; // of -0 too
  return Math.abs(found) <= patterns.MAX_FLOAT32 ? found : null;
}

function timestamp(match) {
  return (match[5] ? inUtc(match) : local(match)).replace(/ 00:00:00$/, "");
}

function local(match) {
  const fraction = (match[4] ?? "").replace(/0+$/, "").replace(/\.$/, "");
  return `${match[1]} ${match[2]}${match[3] ?? ":00"}${fraction}`;
}

function inUtc(match) {
  const second = converted(match, UTC);
  return second === null ? match[0] : `${second}${local(match).slice(19)}+00:00`;
}

function dayText(text, hasHour) {
  text = inZone(oneLine(text));
  if (!text) return "";
  const match = DAY.exec(text);
  if (!match || seconds(`${match[1]} 00:00:00`) === null) return null;
  return hasHour ? `${match[1]}T${match[3] ?? "00"}` : match[1];
}

function inZone(text) {
  const match = TIMESTAMP.exec(text);
  return (match?.[5] && converted(match, zone)) || text;
}

function converted(match, to) {
  const utc = seconds(local(match).slice(0, 19));
  if (utc === null) return null;
  const shift = Number(match[7] ?? 0) * 3600 + Number(match[8] ?? 0) * 60;
  const moved = utc + (match[6] === "-" ? shift : -shift);
  return isYear(moved) ? secondText(moved + offsetAt(moved, to)) : null;
}

// Behind the table a zone repeats itself every 400 years, as the Gregorian calendar does.
function offsetAt(utc, { changes, offsets, last, cycle }) {
  const past = changes.length ? Math.floor(Math.max(0, utc - last + cycle) / cycle) : 0;
  return offsets[changes.filter((change) => change <= utc - past * cycle).length];
}

function seconds(text) {
  const time = Date.parse(`${text.replace(" ", "T")}Z`) / 1000;
  return isYear(time) && secondText(time) === text ? time : null; // some browsers take 30 February for 1 March
}

function isYear(time) {
  return time >= -62135596800 && time < 253402300800; // 1 to 9999
}

function secondText(time) {
  return isYear(time) ? new Date(time * 1000).toISOString().slice(0, 19).replace("T", " ") : null;
}

// The words of a text, as on_device/words.py cuts it.

function plainWords(text) {
  const words = [];
  let word = "";
  let alone = false;
  let before = " ";
  for (const letter of text.toLowerCase()) {
    const hasOwnWord = isOwnWord(letter.codePointAt(0));
    let kind = /\p{L}/u.test(letter) || (/\p{C}/u.test(letter) && hasOwnWord) ? "L" : " ";
    if (/\p{N}/u.test(letter)) kind = "N";
    if (/\p{M}/u.test(letter) && before !== " ") kind = "M";
    before = kind;
    const isOwn = hasOwnWord && !(kind === "M" && alone);
    if (kind === " " || isOwn || (alone && kind !== "M")) {
      if (word) words.push(word);
      word = "";
      alone = isOwn;
    }
    if (kind !== " ") word += letter;
  }
  return word ? [...words, word] : words;
}

function isOwnWord(point) {
  const [first, last] = ownWords;
  return first.some((start, place) => start <= point && point <= last[place]);
}

// The columns that the recipe derives, as on_device/columns.py computes them.

const KERNELS = {
  add: (left, right) => left + right,
  subtract: (left, right) => left - right,
  multiply: (left, right) => left * right,
  divide: (left, right) => left / right,
  negate: (value) => -value,
  abs: Math.abs,
  ln: Math.log,
  equal: (left, right) => inSingle(left) === inSingle(right),
  not_equal: (left, right) => inSingle(left) !== inSingle(right),
  less: (left, right) => compare(left, right) < 0,
  less_equal: (left, right) => compare(left, right) <= 0,
  greater: (left, right) => compare(left, right) > 0,
  greater_equal: (left, right) => compare(left, right) >= 0,
  invert: (truth) => !truth,
  if_else: (truth, yes, no) => (truth ? yes : no),
  bin: (value, width) => String(Math.floor(inSingle(value / width)) + 0),
  binary_join_element_wise: (...texts) => texts.slice(0, -1).join(texts.at(-1)),
};

function computed(tree, row) {
  const [value, isKnown] = evaluate(tree, row);
  if (typeof value !== "number") return isKnown ? canonical(String(value)) : "";
  return isKnown && Number.isFinite(value) ? Math.fround(value) : NaN;
}

function evaluate([kind, ...rest], row) {
  if (kind === "constant") return [rest[0], true];
  if (kind === "cell") {
    const cell = row[rest[0]];
    return [cell, typeof cell === "string" ? cell !== "" : Number.isFinite(cell)];
  }
  const [kernel, ...inner] = rest;
  const pairs = inner.map((argument) => evaluate(argument, row));
  const values = pairs.map(([value]) => value);
  const allKnown = pairs.every(([, isKnown]) => isKnown);
  if (kernel === "is_null") return [!allKnown, true];
  if (kernel === "or_kleene" || kernel === "and_kleene") {
    const decides = kernel === "or_kleene"; // whatever the other is
    const isDecided = pairs.some(([value, isKnown]) => isKnown && Boolean(value) === decides);
    return [isDecided ? decides : !decides, isDecided || allKnown];
  }
  const fits = kernel !== "bin" || Math.abs(inSingle(values[0] / values[1])) < MOST_BINS;
  return [fits ? KERNELS[kernel](...values) : "0", allKnown && fits];
}

// A number as the model gets it.
function inSingle(value) {
  return typeof value === "number" ? Math.fround(value) : value;
}

// Texts in the order of their code points, as Python has them, and not of UTF-16.
function compare(left, right) {
  if (typeof left === "number") {
    [left, right] = [inSingle(left), inSingle(right)];
    return left < right ? -1 : Number(left > right) || (left === right ? 0 : NaN);
  }
  const [ours, theirs] = [Array.from(left), Array.from(right)];
  const place = ours.findIndex((letter, index) => letter !== theirs[index]);
  if (place === -1) return ours.length - theirs.length;
  return place < theirs.length ? ours[place].codePointAt(0) - theirs[place].codePointAt(0) : 1;
}

// FarmHash's Fingerprint64, as on_device/fingerprint.py has it.

const [K0, K1, K2] = [0xc3a5c85c97cb3127n, 0xb492b66fbe98f273n, 0x9ae16a3b2f90404fn];
const cut = (value) => BigInt.asUintN(64, value);
const shift = (value) => value ^ (value >> 47n);
const rotate = (value, by) => ((value = cut(value)), cut((value >> BigInt(by)) | (value << BigInt(64 - by))));

function integer(text, at, size = 8) {
  let value = 0n;
  for (let place = at + size - 1; place >= at; place--) value = (value << 8n) | BigInt(text[place]);
  return value;
}

function mix(u, v, factor) {
  v = cut(v);
  const a = shift(cut((u ^ v) * factor));
  return cut(shift(cut((v ^ a) * factor)) * factor);
}

function fingerprint64(text) {
  if (text.length <= 16) return hashTo16(text);
  if (text.length <= 32) return hashTo32(text);
  return text.length <= 64 ? hashTo64(text) : hashLong(text);
}

function hashTo16(text) {
  const size = BigInt(text.length);
  const factor = K2 + 2n * size;
  if (text.length >= 8) {
    const a = cut(integer(text, 0) + K2);
    const b = integer(text, text.length - 8);
    return mix(cut(rotate(b, 37) * factor + a), (rotate(a, 25) + b) * factor, factor);
  }
  if (text.length >= 4) return mix(size + (integer(text, 0, 4) << 3n), integer(text, text.length - 4, 4), factor);
  if (!text.length) return K2;
  const y = BigInt(text[0] + (text[text.length >> 1] << 8));
  const z = BigInt(text.length + (text.at(-1) << 2));
  return cut(shift(cut(y * K2) ^ cut(z * K0)) * K2);
}

function hashTo32(text) {
  const factor = K2 + 2n * BigInt(text.length);
  const a = cut(integer(text, 0) * K1);
  const b = integer(text, 8);
  const c = cut(integer(text, text.length - 8) * factor);
  const d = integer(text, text.length - 16) * K2;
  return mix(cut(rotate(a + b, 43) + rotate(c, 30) + d), a + rotate(b + K2, 18) + c, factor);
}

function hashTo64(text) {
  const factor = K2 + 2n * BigInt(text.length);
  const a = cut(integer(text, 0) * K2);
  const b = integer(text, 8);
  const c = cut(integer(text, text.length - 8) * factor);
  const y = cut(rotate(a + b, 43) + rotate(c, 30) + integer(text, text.length - 16) * K2);
  const z = mix(y, a + rotate(b + K2, 18) + c, factor);
  const e = cut(integer(text, 16) * factor);
  const f = integer(text, 24);
  const g = cut((y + integer(text, text.length - 32)) * factor);
  const h = (z + integer(text, text.length - 24)) * factor;
  return mix(cut(rotate(e + f, 43) + rotate(g, 30) + h), e + rotate(f + a, 18) + g, factor);
}

function hashLong(text) {
  let x = 81n;
  let y = cut(81n * K1 + 113n);
  let z = cut(shift(cut(y * K2 + 113n)) * K2);
  let [v, w] = [[0n, 0n], [0n, 0n]];
  x = cut(x * K2 + integer(text, 0));
  const round = (at, factor, times) => {
    x = cut(rotate(x + y + v[0] + integer(text, at + 8), 37) * factor);
    y = cut(rotate(y + v[1] + integer(text, at + 48), 42) * factor);
    x ^= cut(w[1] * times);
    y = cut(y + v[0] * times + integer(text, at + 40));
    z = cut(rotate(z + w[0], 33) * factor);
    v = weak(text, at, v[1] * factor, x + w[0]);
    w = weak(text, at + 32, z + w[1], y + integer(text, at + 16));
    [z, x] = [x, z];
  };
  const end = Math.floor((text.length - 1) / 64) * 64;
  for (let at = 0; at < end; at += 64) round(at, K1, 1n);
  const factor = K1 + ((z & 0xffn) << 1n);
  w = [cut(w[0] + BigInt((text.length - 1) & 63)), w[1]];
  v = [cut(v[0] + w[0]), v[1]];
  w = [cut(w[0] + v[0]), w[1]];
  round(text.length - 64, factor, 9n);
  return mix(cut(mix(v[0], w[0], factor) + shift(y) * K0 + z), mix(v[1], w[1], factor) + x, factor);
}

function weak(text, at, a, b) {
  const [w, x, y, z] = [0, 8, 16, 24].map((place) => integer(text, at + place));
  a = cut(a + w);
  b = rotate(b + a + z, 21);
  const c = a;
  a = cut(a + x + y);
  return [cut(a + z), cut(b + rotate(a, 44) + c)];
}

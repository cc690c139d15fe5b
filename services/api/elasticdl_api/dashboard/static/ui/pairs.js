/** Keys with values as people type them: `key=value`, one a line. Pure. */

/** Pairs as text. `texts`: all values are texts, and stand as they are; else each is JSON, or text that does not look like it. */
export function pairsText(pairs, texts) {
  return Object.entries(pairs || {})
    .map(([key, one]) => `${key}=${typeof one === "string" && (texts || !looksLikeJson(one)) ? one : JSON.stringify(one)}`)
    .join("\n");
}

/** Text as pairs; what is none stays text. */
export function pairsOf(text, texts) {
  const found = {};
  for (const line of String(text).split("\n").filter((one) => one.trim())) {
    const [key, ...rest] = line.split("=");
    if (!rest.length) return text;
    const value = rest.join("=").trim();
    found[key.trim()] = texts ? value : parsed(value);
  }
  return found;
}

/** What turns some pairs into others, as a patch (RFC 7396): null takes one away. */
export function patchOf(before, after) {
  const gone = Object.keys(before).filter((key) => !(key in after)).map((key) => [key, null]);
  return Object.fromEntries([...gone, ...Object.entries(after).filter(([key, value]) => before[key] !== value)]);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    return text;
  }
}

const looksLikeJson = (text) => typeof parsed(text) !== "string" || text.startsWith('"');

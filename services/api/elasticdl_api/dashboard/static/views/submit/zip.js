/** A zip of one file, for a model that is uploaded without a folder around it: stored, not compressed. */

const TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  let value = number;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value >>> 0;
});

/** The checksum that zips carry. */
export function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 0xff] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

/**
 * @param {string} name
 * @param {Uint8Array} content
 * @returns {Uint8Array} the same for the same content: no times in it.
 */
export function zipOf(name, content) {
  const path = new TextEncoder().encode(name);
  const fields = (view, at) => {
    view.setUint16(at, 20, true); // version
    view.setUint16(at + 2, 0x800, true); // names are UTF-8
    view.setUint16(at + 8, 0x21, true); // 1 January 1980
    view.setUint32(at + 10, crc32(content), true);
    view.setUint32(at + 14, content.length, true);
    view.setUint32(at + 18, content.length, true);
    view.setUint16(at + 22, path.length, true);
  };
  const local = 30 + path.length + content.length;
  const central = 46 + path.length;
  const zip = new Uint8Array(local + central + 22);
  const view = new DataView(zip.buffer);
  view.setUint32(0, 0x04034b50, true);
  fields(view, 4);
  zip.set(path, 30);
  zip.set(content, 30 + path.length);
  view.setUint32(local, 0x02014b50, true);
  view.setUint16(local + 4, 20, true);
  fields(view, local + 6);
  view.setUint32(local + 38, (0o100644 << 16) >>> 0, true);
  zip.set(path, local + 46);
  const end = local + central;
  view.setUint32(end, 0x06054b50, true);
  view.setUint16(end + 8, 1, true);
  view.setUint16(end + 10, 1, true);
  view.setUint32(end + 12, central, true);
  view.setUint32(end + 16, local, true);
  return zip;
}

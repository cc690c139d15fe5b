/** Data as files of whoever looks at the page. */

/** Has the browser keep a value as a file of JSON. */
export function saveJson(name, value, indent = 0) {
  saveBlob(name, new Blob([JSON.stringify(value, null, indent)], { type: "application/json" }));
}

/** Has the browser keep a blob as a file. */
export function saveBlob(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

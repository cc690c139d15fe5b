/** Data as files of whoever looks at the page. */

/** Has the browser keep a value as a file of JSON. */
export function saveJson(name, value, indent = 0) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, indent)], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Tables as tables: a caption for screen readers, headings that sort, numbers at the right. */
import { html } from "../lib.js";

/**
 * @typedef {{key: string, label: string, cell: (row: any) => any, number?: boolean, sort?: string, title?: string,
 *   wide?: boolean, narrow?: "hide"}} Column  `sort` is the name to sort by; `wide` takes what is left; `narrow: "hide"`
 *   leaves it out on a phone.
 *
 * @param {{caption: string, columns: Column[], rows: any[], id: (row: any) => string, sort?: string,
 *   onSort?: (sort: string) => void, empty?: any, mark?: (row: any) => string, busy?: boolean}} props
 *   `sort` is a column's sort name, with `-` for the largest first; `mark` gives a row's data-mark.
 */
export function Table({ caption, columns, rows, id, sort = "", onSort, empty, mark, busy = false }) {
  return html`<div class="table" tabindex="0" role="region" aria-label=${caption}><table aria-busy=${busy}>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((column) => html`<${Heading} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${id(row)} data-mark=${mark ? mark(row) : undefined}>
      ${columns.map((column) => html`<td key=${column.key} class=${classes(column)}>${column.cell(row)}</td>`)}</tr>`)}</tbody>
  </table>${rows.length === 0 && empty}</div>`;
}

const classes = (column) =>
  [column.number && "number", column.wide && "stretch", column.narrow && `narrow-${column.narrow}`].filter(Boolean).join(" ");

function Heading({ column, sort, onSort }) {
  const looks = classes(column);
  if (!column.sort || !onSort) return html`<th scope="col" class=${looks} title=${column.title}>${column.label}</th>`;
  const direction = sort === column.sort ? "ascending" : sort === `-${column.sort}` ? "descending" : "none";
  const next = direction === "descending" || (direction === "none" && !column.number) ? column.sort : `-${column.sort}`;
  return html`<th scope="col" class=${looks} aria-sort=${direction} title=${column.title}>
    <button type="button" onClick=${() => onSort(next)}>${column.label}<i aria-hidden="true"></i></button></th>`;
}

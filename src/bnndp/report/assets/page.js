// The report without it is whole but still: it adds the theme, the radius, and a table that sorts, filters and turns pages.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;

  // The theme: that of the system until the button is pressed.
  const theme = $("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Show in ${theme.textContent.toLowerCase()} colours`); };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();

  const make = (kind, text, attributes = {}) => {
    const element = document.createElement(kind);
    if (text !== null) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const source = $("data");
  if (!source) return;
  const { columns, rows, eps, end } = JSON.parse(source.textContent);
  const at = Object.fromEntries(columns.map((column, index) => [column.name, index]));
  const count = (number) => number.toLocaleString("en");
  for (const column of columns) column.least = new Set(column.least.map((index) => rows[index]));
  const shown = (column, cell, row) => cell === null ? column.empty
    : typeof cell === "number" ? (column.least.has(row) ? "≥ " : "") + String(cell).replace("-", "−") : cell;
  const PAGE = 25;
  const state = { sort: null, down: false, page: 0, filters: {}, found: rows };

  // The verdicts at a radius. Radii are rounded to the safe side, so no count is above what is proved.
  const verdictAt = (row, radius) => {
    const breaks = row[at.decision] !== row[at.label] ? 0 : row[at["attack radius"]];
    if (row[at["proved radius"]] !== null && row[at["proved radius"]] >= radius) return "certified";
    return breaks !== null && breaks <= radius ? "falsified" : "undecided";
  };
  const share = (part, up) => {
    const tenths = (up ? Math.ceil : Math.floor)(1000 * part / rows.length);
    return `${Math.floor(tenths / 10)}.${tenths % 10} %`;
  };
  const judge = (radius) => {
    const tally = { certified: 0, undecided: 0, falsified: 0 };
    for (const row of rows) tally[row[at.verdict] = verdictAt(row, radius)] += 1;
    let start = 0;
    for (const [kind, number] of Object.entries(tally)) {
      const width = 100 * number / rows.length;
      $(`share-${kind}`).setAttribute("x", start);
      $(`share-${kind}`).setAttribute("width", width);
      $(`count-${kind}`).textContent = count(number);
      $(`percent-${kind}`).textContent = ` (${share(number, kind === "undecided")}) `;
      start += width;
    }
    const text = String(Number(radius.toPrecision(4)));
    $("head-certified").textContent = count(tally.certified);
    $("head-eps").textContent = $("radius-shown").textContent = text;
    const cursor = $("cursor");
    if (cursor) {
      const from = Number(cursor.dataset.from), to = Number(cursor.dataset.to);
      cursor.setAttribute("transform", `translate(${from + (to - from) * Math.min(radius / end, 1)} 0)`);
      cursor.setAttribute("visibility", "visible");
    }
  };

  // The table.
  const table = $("rows"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const order = (a, b) => {
    const [x, y] = [a[state.sort], b[state.sort]];
    if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last, either way
    const way = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
    return state.down ? -way : way;
  };
  const passes = (row) => Object.values(state.filters).every((test) => test(row));
  const draw = () => {
    state.found = rows.filter(passes);
    if (state.sort !== null) state.found = [...state.found].sort(order);
    const pages = Math.max(1, Math.ceil(state.found.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * PAGE;
    body.replaceChildren(...state.found.slice(first, first + PAGE).map((row) => {
      const line = make("tr", null);
      columns.forEach((column, index) => line.append(make("td", shown(column, row[index], row),
        { class: column.kind === "verdict" ? `verdict ${row[index]}` : column.kind })));
      return line;
    }));
    heads.forEach((head, index) => {
      if (index === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const last = Math.min(first + PAGE, state.found.length);
    $("count").textContent = state.found.length === 0 ? `none of ${count(rows.length)} inputs`
      : `${count(first + 1)} to ${count(last)} of ${count(state.found.length)}`
        + (state.found.length === rows.length ? " inputs" : ` that pass, of ${count(rows.length)} inputs`);
    $("page-number").textContent = `page ${count(state.page + 1)} of ${count(pages)}`;
    for (const [id, off] of [["page-first", first === 0], ["page-back", first === 0],
      ["page-next", state.page === pages - 1], ["page-last", state.page === pages - 1]]) $(id).disabled = off;
  };
  heads.forEach((head, index) => {
    const button = make("button", columns[index].name, { type: "button" });
    button.addEventListener("click", () => {
      state.down = state.sort === index && !state.down;
      state.sort = index;
      state.page = 0;
      draw();
    });
    head.replaceChildren(button);
  });

  // Filters: a choice for every column of a few values, and one comparison of a number.
  const filters = $("filters");
  const labelled = (text, ...fields) => { const label = make("label", text); label.append(...fields); return label; };
  const choice = (values) => { const select = make("select", null); for (const [value, text] of values) select.append(make("option", text, { value })); return select; };
  const refresh = () => { state.page = 0; draw(); };
  columns.forEach((column, index) => {
    if (column.kind === "number") return;
    const values = column.kind === "verdict" ? ["certified", "undecided", "falsified"]
      : [...new Set(rows.map((row) => row[index]))].sort((a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
    if (values.length < 2 || values.length > 200) return;
    const select = choice([["", "all"], ...values.map((value) => [String(value), String(value)])]);
    select.id = `filter-${index}`;
    select.addEventListener("change", () => {
      if (select.value === "") delete state.filters[index];
      else state.filters[index] = (row) => String(row[index]) === select.value;
      refresh();
    });
    filters.append(labelled(column.name, select));
  });
  const numbers = columns.map((column, index) => [index, column]).filter(([, column]) => column.kind === "number");
  const which = choice(numbers.map(([index, column]) => [index, column.name]));
  const side = choice([["least", "at least"], ["most", "at most"]]);
  const limit = make("input", null, { type: "number", step: "any", id: "filter-limit" });
  which.id = "filter-which"; side.id = "filter-side";
  const compare = () => {
    const index = Number(which.value), bound = limit.valueAsNumber, least = side.value === "least";
    if (Number.isNaN(bound)) delete state.filters.limit;
    else state.filters.limit = (row) => row[index] !== null && (least ? row[index] >= bound : row[index] <= bound);
    refresh();
  };
  for (const field of [which, side]) field.addEventListener("change", compare);
  limit.addEventListener("input", compare);
  filters.append(labelled("number", which), labelled("is", side), labelled("this", limit));
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;

  // Pages.
  const nav = $("pages");
  const turn = (id, text, label, go) => {
    const button = make("button", text, { type: "button", id, "aria-label": label });
    button.addEventListener("click", () => { state.page = go(); draw(); });
    nav.append(button);
  };
  turn("page-first", "«", "First page", () => 0);
  turn("page-back", "‹", "Page before", () => state.page - 1);
  nav.append(make("span", "", { id: "page-number" }));
  turn("page-next", "›", "Next page", () => state.page + 1);
  turn("page-last", "»", "Last page", () => Infinity);
  nav.hidden = rows.length <= PAGE;

  if (eps !== null && at.verdict !== undefined && $("radius")) {
    $("slider").hidden = false;
    $("radius").addEventListener("input", () => { judge(Number($("radius").value)); draw(); });
    judge(eps);
  }
  draw();
})();

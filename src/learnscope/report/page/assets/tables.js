// Tables, code to copy, and numbers as JSON or CSV.

/** A table. Columns: {key, label, format, align}; a cell may also be a node. */
function table(columns, rows, options = {}) {
  return h(
    "div",
    { class: "table-box", tabindex: 0, role: "region", "aria-label": options.label || "table" },
    h(
      "table",
      {},
      options.label ? h("caption", { class: "unseen" }, options.label) : null,
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((each) => h("th", { scope: "col", class: each.align || null }, each.label)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            columns.map((each) => {
              const value = row[each.key];
              const text = each.format ? each.format(value, row) : value;
              return h(
                "td",
                { class: each.align || null },
                text === null || text === undefined ? h("span", { class: "none" }, "n/a") : text,
              );
            }),
          ),
        ),
      ),
    ),
  );
}

function asCsv(rows) {
  if (!rows.length) return "";
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names.join(","), ...rows.map((row) => names.map((name) => cell(row[name])).join(","))].join("\n");
}

async function copy(text, button) {
  let done = true;
  lastCopied = text;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  const before = button.dataset.label || button.textContent;
  button.dataset.label = before;
  button.textContent = done ? "copied" : "not copied";
  setTimeout(() => {
    button.textContent = before;
  }, 1200);
}

let lastCopied = "";

/** A menu that copies rows as CSV or JSON, and the line of Python that gets them. */
function copyMenu(rows, body) {
  const item = (label, text) =>
    h(
      "button",
      { type: "button", class: "tool", "data-copy": label, onclick: (event) => copy(text(), event.currentTarget) },
      label,
    );
  const menu = h(
    "details",
    { class: "menu" },
    h("summary", { class: "tool" }, "copy"),
    h(
      "div",
      { class: "menu-items" },
      item("CSV", () => asCsv(rows())),
      item("JSON", () => JSON.stringify(rows(), null, 1)),
      body?.pandas ? item("Python", () => body.pandas) : null,
    ),
  );
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu.open = false;
  });
  menu.addEventListener("focusout", (event) => {
    if (!menu.contains(event.relatedTarget)) menu.open = false;
  });
  return menu;
}

/** Code with a button that copies it. */
function code(text, label = "Copy") {
  return h(
    "div",
    { class: "code" },
    h("pre", { tabindex: 0 }, h("code", {}, text)),
    h("button", { type: "button", class: "tool", onclick: (event) => copy(text, event.currentTarget) }, label),
  );
}

/** A folded part, whose content is made when it is first opened. */
function folded(summary, make, options = {}) {
  const box = h("div", { class: "folded-body" });
  const details = h(
    "details",
    { class: options.class || "folded", id: options.id || null },
    h("summary", {}, summary),
    box,
  );
  let made = false;
  const fill = () => {
    if (made || !details.open) return;
    made = true;
    append(box, [make()]);
  };
  details.addEventListener("toggle", fill);
  details.fill = () => {
    details.open = true;
    fill();
  };
  return details;
}

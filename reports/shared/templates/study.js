(() => {
  "use strict";
  // Tables that are laid out as cards lose their meaning for readers of the screen in some browsers, but for roles.
  const roles = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
  for (const part of document.querySelectorAll(".compare, .compare :is(thead, tbody, tr, th, td)")) {
    const isColumn = part.parentElement.parentElement.tagName === "THEAD";
    part.setAttribute("role", roles[part.tagName] || (isColumn ? "columnheader" : "rowheader"));
  }

  const form = document.getElementById("filter");
  const words = document.getElementById("filter-words");
  const status = document.getElementById("filter-status");
  const boxes = [...form.querySelectorAll("input[type=checkbox]")];
  const items = [...document.querySelectorAll(".item")].map((part) => ({
    part,
    kind: part.dataset.kind,
    outcomes: (part.dataset.outcomes || "").split(" ").filter(Boolean),
    rows: [...part.querySelectorAll("tbody.row")],
  }));
  const groups = [...document.querySelectorAll("details.more")];
  const sections = [...document.querySelectorAll("section.filtered")];

  // A number is looked for as a whole, so that 1 does not find 10 and 0.31; words by any part of them.
  const index = (parts) => {
    const text = parts.map((part) => part.textContent.toLowerCase()).join(" ");
    const tokens = new Set(text.split(/[^\p{L}\p{N}_.−-]+/u).map((token) => token.replace(/^\.+|\.+$/g, "")));
    return (word) => (/^[-−]?[\d.]+$/.test(word) ? tokens.has(word) : text.includes(word));
  };
  let read = false;
  const readTexts = () => {
    if (read) return;
    read = true;
    for (const item of items) {
      const parts = item.rows.length ? [...item.part.querySelectorAll(":scope > summary, thead")] : [item.part];
      item.has = index(parts);
      item.rowHas = item.rows.map((row) => index([...row.querySelectorAll("th[rowspan]")]));
    }
  };

  const chosen = (name) => boxes.filter((box) => box.name === name && box.checked).map((box) => box.value);
  const isAll = (name) => boxes.every((box) => box.name !== name || box.checked);

  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kinds = new Set(chosen("kind"));
    const outcomes = new Set(chosen("verdict"));
    const everyOutcome = isAll("verdict");
    if (wanted.length) readTexts();
    const changes = [];
    let shown = 0;
    for (const item of items) {
      let visible = kinds.has(item.kind) && (everyOutcome || item.outcomes.some((one) => outcomes.has(one)));
      if (visible && wanted.length) {
        const left = wanted.filter((word) => !item.has(word));
        if (item.rows.length) {
          const rows = item.rowHas.map((has) => left.every(has));
          visible = left.length === 0 || rows.includes(true);
          item.rows.forEach((row, place) => changes.push([row, !rows[place]]));
        } else {
          visible = left.length === 0;
        }
      } else {
        item.rows.forEach((row) => changes.push([row, false]));
      }
      changes.push([item.part, !visible]);
      shown += visible ? 1 : 0;
    }
    for (const [part, hide] of changes) if (part.hidden !== hide) part.hidden = hide;
    const isFiltered = wanted.length > 0 || !everyOutcome;
    for (const group of groups) {
      const any = group.querySelector(".item:not([hidden]), tbody.row:not([hidden])");
      group.hidden = !any;
      if (any && isFiltered) group.open = true;
    }
    for (const section of sections) section.hidden = !section.querySelector(".item:not([hidden])");
    status.textContent = shown === items.length
      ? `All ${items.length} entries are shown.`
      : `${shown} of ${items.length} entries are shown.${shown ? "" : " Nothing fits this filter."}`;
  };

  const remember = () => {
    const state = new URLSearchParams();
    if (words.value.trim()) state.set("q", words.value.trim());
    for (const name of ["kind", "verdict"]) if (!isAll(name)) state.set(name, chosen(name).join(","));
    const text = state.toString();
    const bare = location.href.split("#")[0];
    if (text) history.replaceState(null, "", `${bare}#${text}`);
    else if (location.hash.includes("=")) history.replaceState(null, "", bare);
  };

  const recall = () => {
    const hash = location.hash.slice(1);
    if (hash.includes("=")) {
      const state = new URLSearchParams(hash);
      words.value = state.get("q") || "";
      for (const box of boxes) {
        const values = state.get(box.name);
        box.checked = values === null || values.split(",").includes(box.value);
      }
      apply();
      return;
    }
    const target = hash && document.getElementById(hash);
    if (target && target.closest("[hidden]")) {
      form.reset();
      apply();
    }
    if (target && target.tagName === "DETAILS") target.open = true;
    for (let above = target && target.parentElement; above; above = above.parentElement) {
      if (above.tagName === "DETAILS") above.open = true;
    }
    if (target) target.scrollIntoView();
  };

  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      apply();
      remember();
    });
  };
  const fold = (open) => document.querySelectorAll("details.item, details.more").forEach((part) => { part.open = open; });

  form.addEventListener("input", later);
  form.addEventListener("reset", () => setTimeout(later));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("unfold").addEventListener("click", () => fold(true));
  document.getElementById("fold").addEventListener("click", () => fold(false));
  window.addEventListener("hashchange", recall);
  form.hidden = false;
  apply();
  recall();
})();

// Texts whose contrast with what is behind them is below 4.5 (3 for large ones).
const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const channel = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
function behind(element) {
  for (let each = element; each; each = each.parentElement) {
    const [r, g, b, a = 1] = parse(getComputedStyle(each).backgroundColor);
    if (a === 1) return [r, g, b];
  }
  return [255, 255, 255];
}
const found = [];
for (const details of document.querySelectorAll("details")) details.open = true;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.textContent.trim() || !element.getClientRects().length) continue;
  if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const drawn = element.closest("svg") ? style.fill : style.color;
  if (element.closest("svg.tree .on")) continue; // lies on its circle, not on the page
  const pair = [luminance(parse(drawn)), luminance(behind(element))].sort((a, b) => b - a);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
  if (ratio < least) found.push([node.textContent.trim().slice(0, 40), drawn, ratio]);
}
return found;

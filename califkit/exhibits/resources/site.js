// Code of notebooks is folded; a button above the first cell shows it.
document.addEventListener("DOMContentLoaded", () => {
  const notebook = document.querySelector(".jupyter-wrapper");
  if (!notebook) return;
  const button = document.createElement("button");
  button.className = "md-button code-toggle";
  const fold = (folded) => {
    notebook.classList.toggle("code-folded", folded);
    button.textContent = folded ? "Show the code" : "Fold the code";
    button.setAttribute("aria-expanded", String(!folded));
  };
  button.addEventListener("click", () => fold(!notebook.classList.contains("code-folded")));
  fold(true);
  notebook.before(button);
});

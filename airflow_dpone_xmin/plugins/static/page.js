// Airflow keeps the chosen colour mode under this key; "system", or no choice, follows the reader's system.
const follow = () => {
  const mode = localStorage.getItem("theme");
  if (mode === "light" || mode === "dark") document.documentElement.dataset.theme = mode;
  else delete document.documentElement.dataset.theme;
};
follow();
addEventListener("storage", follow);

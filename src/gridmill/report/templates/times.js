const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
const digits = (value) => String(value).padStart(2, "0");
for (const element of document.querySelectorAll("time")) {
  const at = new Date(element.dateTime);
  if (isNaN(at)) continue;
  const ahead = -at.getTimezoneOffset(), minutes = Math.abs(ahead);
  const day = [at.getFullYear(), digits(at.getMonth() + 1), digits(at.getDate())].join("-");
  const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(digits).join(":");
  const offset = (ahead < 0 ? "-" : "+") + digits(Math.floor(minutes / 60)) + ":" + digits(minutes % 60);
  element.title = element.textContent;
  element.textContent = `${day} ${clock} ${offset}${zone && ` (${zone})`}`;
}

// Asks again when it is told to wait, at most `tries` times in all.
export async function patientFetch(url, options = {}, tries = 3) {
  for (;;) {
    const response = await fetch(url, options);
    tries -= 1;
    // Null where no wait helps.
    const seconds = Number(response.headers.get("retry-after"));
    if (![429, 503].includes(response.status) || !(seconds > 0) || tries <= 0) {
      return response;
    }
    // Up to a second later than told, so that not everybody comes at once.
    await new Promise((resolve) => setTimeout(resolve, (seconds + Math.random()) * 1000));
  }
}

// How many requests are left, and for how many seconds more.
export function left(response) {
  const number = (name) => Number(response.headers.get(`x-ratelimit-${name}`));
  return { requests: number("remaining"), seconds: number("reset") - Date.now() / 1000 };
}

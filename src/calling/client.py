import random
import time
import urllib.error
import urllib.request


def patient_get(url, tries=3):
    """Asks again when it is told to wait, at most `tries` times in all."""
    while True:
        try:
            return urllib.request.urlopen(url)
        except urllib.error.HTTPError as error:
            tries -= 1
            # None where no wait helps.
            seconds = int(error.headers.get("retry-after", 0))
            if error.code not in (429, 503) or seconds <= 0 or tries <= 0:
                raise
        # Up to a second later than told, so that not everybody comes at once.
        time.sleep(seconds + random.random())


def left(response):
    """How many requests are left, and for how many seconds more."""
    requests = int(response.headers["x-ratelimit-remaining"])
    return requests, int(response.headers["x-ratelimit-reset"]) - time.time()

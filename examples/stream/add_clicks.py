"""Adds made-up clicks to the Redis stream `clicks`: `add_clicks.py [URL [NUMBER]]`."""

import random
import sys

import redis

PAGES = ("home", "tea", "coffee", "cake")


def main(url: str, number: int) -> None:
    """So many more, in one go."""
    drawn = random.Random(number)
    pipe = redis.Redis.from_url(url).pipeline(transaction=False)
    for _ in range(number):
        price = drawn.randint(4, 40) / 4
        pipe.xadd(
            "clicks", {"user": f"u{drawn.randint(1, 20):02}", "page": drawn.choice(PAGES), "price": price}
        )
    pipe.execute()
    print(f"{number} clicks")


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6379/0",
        int(sys.argv[2]) if len(sys.argv) > 2 else 1000,
    )

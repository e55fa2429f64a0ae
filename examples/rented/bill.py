"""Prints the bill of a simulated account, and how many of its machines are alive: `python bill.py URL`."""

import json
import sys
import urllib.request


def ask(command: str):
    """Return the answer of the simulation to a command."""
    with urllib.request.urlopen(f"{sys.argv[1]}/_simulation/{command}") as answer:
        return json.load(answer)


bill = ask("bill")
for item in bill["items"]:
    seconds, amount = item["seconds"], item["amount_micros"] / 1e6
    print(f"{item['charge']:15} {item['detail']:32} {seconds:4} s  {amount:.6f} USD")
print(f"{'total':56}{bill['total_micros'] / 1e6:.6f} USD")
machines = ask("machines")
alive = [machine for machine in machines if machine["state"] != "terminated"]
print(f"machines rented: {len(machines)}, alive: {len(alive)}")

"""Re-reads the committed results and prints the claims with pass or miss; exit 0 only if all pass.

python experiments/check.py   # --write also leaves all lanes and claims in results.md, tables in README and docs
"""

import argparse
import json

import appendix
import tables
from claims import JUDGES
from run import HERE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="leave tables and claims in results.md, README and docs")
    args = parser.parse_args()
    claims, text = judged()
    for name, what, holds, numbers in claims:
        print(f"{'pass' if holds else 'MISS'}  {name:<30} {what:<52} {numbers}")
    missed = sum(not holds for _, _, holds, _ in claims)
    print(f"check: claims={len(claims)} passed={len(claims) - missed} missed={missed}")
    if args.write:
        (HERE / "results.md").write_text(text)
        tables.write()
    return 1 if missed or not claims else 0


def judged() -> tuple[list[tuple[str, str, bool, str]], str]:
    """All claims, each with the result it is about, and results.md as the files have it now."""
    claims, text = [], ["# Results", "", "Written by `python experiments/check.py --write` from the JSON files here."]
    for part, judge in JUDGES.items():
        results = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / part).glob("*.json"))}
        if not results:
            print(f"none  {part:<30} no results yet")
            continue
        own = [(f"{part}/{name}", *claim) for name, *claim in judge(results)]
        claims += own
        text += ["", f"## {part}", "", *appendix.TABLES.get(part, appendix.every_lane)(results), ""]
        text += ["| | of | claim | numbers |", "|---|---|---|---|"]
        text += [f"| {'pass' if holds else '**miss**'} | {name} | {what} | {numbers} |"
                 for name, what, holds, numbers in own]  # fmt: skip
    return claims, "\n".join(text) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())

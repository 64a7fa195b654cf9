"""`python -m deploy.grafana` writes the dashboards that the Helm chart ships."""

from deploy.grafana.writing import FOLDER, write


def main() -> None:
    changed = write()
    for path in changed:
        print(path)
    if not changed:
        print(f"{FOLDER} is up to date")


main()

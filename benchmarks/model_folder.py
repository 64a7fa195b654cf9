"""Prints the Hugging Face folder of a model that the worker serves, converting it first if need be.

    python -m benchmarks.model_folder smollm2-135m-instruct

A program of its own: finding it needs torch, and a process that measures others had better not load that.
"""

import argparse

from worker.model.gguf import converted
from worker.model.progress import SilentProgress
from worker.model.sources import HuggingFaceFolder, cache_folder, find_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name, a folder or a GGUF file, as for `worker.model.model`")
    source = find_model(parser.parse_args().model)
    if not isinstance(source, HuggingFaceFolder):
        source = converted(source, cache_folder(), SilentProgress())
    print(source.path)


if __name__ == "__main__":
    main()

"""Two folders to answers, in Python: the same as `unida adapt`, `unida predict` and `unida evaluate`.

    python examples/own_folders.py [OUT] [STEPS]

It draws its own pictures. For your photos, put your two folders into `unida.adapt`; leave out
the options from `backbone` to `crop`.
"""

import sys
from pathlib import Path

import unida
from unida.data.glyphs import write_glyphs

if {"-h", "--help"} & set(sys.argv):
    sys.exit(__doc__)
OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own-folders")
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 100

if __name__ == "__main__":
    folders = write_glyphs(OUT / "pictures", shared=4, source_private=2, target_private=2, per_class=6)
    run = unida.adapt(
        source=folders.source,  # one sub-folder per class
        target=folders.target,  # any folder; names of sub-folders are not used in training
        out=OUT / "run",
        backbone="tf_efficientnet_lite0",  # its weights come with unida[offline]; leave it out for better answers
        train="tail",
        steps=STEPS,
        image_size=96,
        crop=80,
        resume=True,  # a second call finds the run finished, or continues one that was killed
    )
    for answer in run.predict(folders.target)[:5]:
        print(f"{answer.path}: {answer.label}, unknown score {answer.unknown_score:.2f}")
    result = run.evaluate()  # here the names of the target's sub-folders are its true classes
    print(f"HOS {result.hos:.3f}, known {result.known:.3f}, unknown {result.unknown:.3f}")

"""A recording small enough to read: four responses in two categories, blocks of three."""

import pandas as pd

GAMMA = 3
LENGTHS = {"a": 4, "b": 7, "c": 1, "d": 5}
KINDS = {"a": "math", "b": "chat", "c": "chat", "d": "math"}
COLUMNS = ["request_id", "position", "accepted", "confidence", "category"]


def recording_frame(kinds=KINDS, gamma=GAMMA):
    """Responses whose first two confidences tell which response and position they are."""
    rows = []
    for number, (name, length) in enumerate(LENGTHS.items()):
        for position in range(length):
            confidence = [number / 16, position / 16, *[0.5] * (gamma - 2)]
            rows.append((name, position, (number + 2 * position) % (gamma + 1), confidence))
    frame = pd.DataFrame(rows, columns=COLUMNS[:4])
    return frame.assign(category=frame["request_id"].map(kinds))

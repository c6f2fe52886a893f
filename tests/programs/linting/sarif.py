"""What the standard SARIF 2.1.0 requires of the parts that are written here.

Properties that the standard does not know are refused, as its schema does.
"""


def _object(required=(), **properties) -> dict:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def _list(items: dict, least: int = 0) -> dict:
    return {"type": "array", "items": items, "minItems": least}


TEXT, BAG = {"type": "string"}, {"type": "object"}
POSITIVE = {"type": "integer", "minimum": 1}
MESSAGE = _object(["text"], text=TEXT)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
ARTIFACT = _object(
    uri={"type": "string", "format": "uri-reference", "pattern": r"^[!-~]+$"},
    uriBaseId=TEXT,
)
REGION = _object(
    startLine=POSITIVE,
    startColumn=POSITIVE,
    endLine=POSITIVE,
    endColumn=POSITIVE,
    snippet=_object(text=TEXT),
)
LOCATION = _object(
    physicalLocation=_object(
        ["artifactLocation"],
        artifactLocation=ARTIFACT,
        region=REGION,
        contextRegion=REGION,
    ),
    logicalLocations=_list(_object(fullyQualifiedName=TEXT, kind=TEXT)),
)
REPLACEMENT = _object(
    ["deletedRegion"], deletedRegion=REGION, insertedContent=_object(text=TEXT)
)
CHANGE = _object(
    ["artifactLocation", "replacements"],
    artifactLocation=ARTIFACT,
    replacements=_list(REPLACEMENT, 1),
)
RESULT = _object(
    ["message"],
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    rank={"type": "number", "minimum": -1, "maximum": 100},
    message=MESSAGE,
    locations=_list(LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    fixes=_list(
        _object(
            ["artifactChanges"], description=MESSAGE, artifactChanges=_list(CHANGE, 1)
        )
    ),
    properties=BAG,
)
RULE = _object(
    ["id"],
    id=TEXT,
    name=TEXT,
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=_object(level=LEVEL),
    properties=BAG,
)
DRIVER = _object(["name"], name=TEXT, version=TEXT, rules=_list(RULE))
NOTIFICATION = _object(
    ["message"], level=LEVEL, message=MESSAGE, locations=_list(LOCATION)
)
INVOCATION = _object(
    ["executionSuccessful"],
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications=_list(NOTIFICATION),
)
RUN = _object(
    ["tool"],
    tool=_object(["driver"], driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations=_list(INVOCATION),
    results=_list(RESULT),
    properties=BAG,
)
SCHEMA = _object(
    ["version", "runs"],
    **{"$schema": TEXT, "version": {"enum": ["2.1.0"]}, "runs": _list(RUN)},
)

// node compile.mjs PYODIDE PACKAGES.zip PROGRAMS.json OUT.zip
// Derives every program once in Pyodide, and packs the modules that this has imported as bytecode, the rest as source.
// Bytecode alone saves ten seconds of compilation on each visit.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [core, packages, programs, out] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${core}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: core });
python.unpackArchive(new Uint8Array(readFileSync(packages)), "zip", { extractDir: "/packages" });
python.globals.set("programs", readFileSync(programs, "utf8"));
await python.runPythonAsync(`
import json, pathlib, py_compile, sys, zipfile

root = pathlib.Path("/packages")
sys.dont_write_bytecode = True
sys.path.insert(0, str(root))
import derivation

PARTS = (*derivation.DOCUMENT_PARTS, "tensor-program", "check", "expansion")
for program in json.loads(programs):
    for part in PARTS:
        derivation.asked(program["text"], part)
loaded = {getattr(x, "__file__", None) for x in list(sys.modules.values())}

def written(packed, name, data):
    packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 9)

with zipfile.ZipFile("/out.zip", "w") as packed:
    for path in sorted(x for x in root.rglob("*") if x.is_file()):
        name = str(path.relative_to(root))
        if str(path) in loaded:
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(path), "/one.pyc", name, doraise=True, invalidation_mode=mode)
            written(packed, f"{name}c", pathlib.Path("/one.pyc").read_bytes())
        else:
            written(packed, name, path.read_bytes())
`);
writeFileSync(out, python.FS.readFile("/out.zip"));

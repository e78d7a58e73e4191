# SPDX-License-Identifier: Apache-2.0
"""weir list, and the names that MODEL may be. The stores are laid out here as ollama and the hub's client document them."""
import hashlib
import json
import os
import re
import shutil

import pytest
import tiny_model
from command import weir, weir_json, weir_measured

GREEDY = ("--raw", "-c", 64, "-n", 4, "--temp", 0)
MODEL_LAYER = "application/vnd.ollama.image.model"


class Stores:
    """Three empty stores and the environment that leads to them."""

    def __init__(self, base):
        self.cache, self.ollama, self.hub = base / "cache", base / "ollama", base / "hub"
        self.own = self.cache / "weir" / "models"
        for folder in (self.own, self.ollama / "blobs", self.hub):
            folder.mkdir(parents=True)
        self.env = {"XDG_CACHE_HOME": self.cache, "OLLAMA_MODELS": self.ollama, "HF_HUB_CACHE": self.hub, "HOME": base}

    def manifest(self, place, text):
        path = self.ollama / "manifests" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
        return path

    def pull(self, place, model):
        """As `ollama pull` leaves it."""
        data = model.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        blob = self.ollama / "blobs" / f"sha256-{digest}"
        if not blob.exists():
            os.link(model, blob)
        layers = [{"mediaType": MODEL_LAYER, "digest": f"sha256:{digest}", "size": len(data)},
                  {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 3}]
        config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:" + "1" * 64, "size": 5}
        self.manifest(place, {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "config": config, "layers": layers})
        return blob

    def download(self, repository, files, revision="abc123", main=True):
        """As the hub's client leaves it: blobs, and links to them in the snapshot of a revision."""
        folder = self.hub / ("models--" + repository.replace("/", "--"))
        for name, model in files.items():
            blob = folder / "blobs" / hashlib.sha256(name.encode()).hexdigest()
            blob.parent.mkdir(parents=True, exist_ok=True)
            if model:
                shutil.copy(model, blob)
            else:
                blob.write_bytes(b"{}")
            link = folder / "snapshots" / revision / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        if main:
            (folder / "refs").mkdir(exist_ok=True)
            (folder / "refs" / "main").write_text(revision)
        return folder

    def list(self):
        found = weir_json("list", env=self.env)
        assert len({model["name"] for model in found["models"]}) == len(found["models"])
        return {model["name"]: model for model in found["models"]}

    def error(self, name, *arguments):
        done = weir("tokenize", name, "x", "--json", *arguments, env=self.env, timeout=60)
        assert done.code > 0, done.show()
        return done.json["error"]


@pytest.fixture
def stores(tmp_path):
    return Stores(tmp_path)


@pytest.fixture(scope="module")
def ids(tiny):
    return weir_json("run", tiny, "hello", *GREEDY)["ids"]


def test_empty(stores, tmp_path):
    done = weir("list", env=stores.env, expect=0)
    assert done.out == b"" and str(stores.own) in done.err and str(stores.ollama) in done.err and str(stores.hub) in done.err
    assert stores.list() == {}
    nowhere = {"XDG_CACHE_HOME": tmp_path / "no", "OLLAMA_MODELS": tmp_path / "such", "HF_HUB_CACHE": tmp_path / "folder"}
    assert weir_json("list", env=nowhere)["models"] == []


def test_every_name_that_is_listed_runs(stores, tiny, ids):
    os.link(tiny, stores.own / "mine.gguf")
    os.link(tiny, stores.own / "mödel 模型 'q\" $x.gguf")
    blob = stores.pull("registry.ollama.ai/library/small/1b", tiny)
    stores.pull("registry.ollama.ai/library/small/latest", tiny)
    stores.pull("registry.ollama.ai/someone/small/latest", tiny)
    stores.pull("hf.co/org/small-GGUF/Q4_0", tiny)
    stores.download("org/one-GGUF", {"one.gguf": tiny, "README.md": None})
    stores.download("org/many-GGUF", {"many-Q4_0.gguf": tiny, "many-Q4_0_L.gguf": tiny, "Q8_0/many-q8_0.gguf": tiny, "mmproj-F16.gguf": tiny})
    stores.download("alone", {"a.gguf": tiny}, main=False)
    models = stores.list()
    assert set(models) == {
        "mine", "mödel 模型 'q\" $x", "ollama:small:1b", "ollama:small:latest", "ollama:someone/small:latest", "ollama:hf.co/org/small-GGUF:Q4_0",
        "hf:org/one-GGUF", "hf:org/many-GGUF:many-Q4_0.gguf", "hf:org/many-GGUF:many-Q4_0_L.gguf", "hf:org/many-GGUF:Q8_0/many-q8_0.gguf",
        "hf:org/many-GGUF:mmproj-F16.gguf", "hf:alone"}
    for name, model in models.items():
        assert model["error"] is None and model["arch"] == "llama" and model["bytes"] == tiny.stat().st_size and model["quantization"] == "Q4_0", model
        assert weir_json("run", name, "hello", *GREEDY, env=stores.env)["ids"] == ids, name
    assert models["ollama:small:1b"]["path"] == str(blob)
    for name in ("ollama:small", "hf:org/many-GGUF:q8_0", "hf:org/many-GGUF:Q4_0_L"):
        assert weir_json("run", name, "hello", *GREEDY, env=stores.env)["ids"] == ids, name
    table = weir("list", env=stores.env, expect=0).out.decode()
    lines = table.splitlines()
    assert len(lines) == 1 + len(models) and all(any(line.startswith(name + " ") for line in lines) for name in models), table
    assert {model["store"] for model in models.values()} == {"weir", "ollama", "hub"}


def test_a_file_is_nearer_than_a_name(stores, tiny, tmp_path):
    """A file of that name in the current folder is what is meant."""
    tiny_model.write(stores.own / "m.gguf", "Q8_0")
    os.link(tiny, tmp_path / "m")
    assert weir_json("plan", "m", env=stores.env, cwd=tmp_path)["file_bytes"] == tiny.stat().st_size
    assert weir_json("plan", "m", env=stores.env)["file_bytes"] != tiny.stat().st_size


def test_endings_in_capitals(stores, tiny):
    for name in ("small.gguf", "small.GGUF"):
        os.link(tiny, stores.own / name)
    assert set(stores.list()) == {"small", "small.GGUF"}
    for name in stores.list():
        assert weir_json("plan", name, env=stores.env)["file_bytes"] == tiny.stat().st_size


def test_split_files_are_one_model(stores, tiny):
    for i in (1, 2, 3):
        os.link(tiny, stores.own / f"big-0000{i}-of-00003.gguf")
    os.link(tiny, stores.own / "lost-00002-of-00002.gguf")
    assert set(stores.list()) == {"big-00001-of-00003", "lost-00002-of-00002"}


def test_unsupported_models_have_a_reason(stores, tmp_path):
    tiny_model.write(stores.own / "snake.gguf", arch="mamba")
    stores.download("org/tensors", {"model.safetensors": None, "config.json": None})
    stores.manifest("registry.ollama.ai/library/pieces/latest", {"layers": [{"mediaType": "application/vnd.ollama.image.tensor", "digest": "sha256:" + "a" * 64}]})
    models = stores.list()
    assert models["snake"]["arch"] == "mamba" and "mamba" in models["snake"]["error"]
    assert "safetensors" in models["hf:org/tensors"]["error"]
    assert stores.error("hf:org/tensors")["exit"] == 4 and stores.error("ollama:pieces")["exit"] == 4
    assert "does not run" in weir("list", env=stores.env, expect=0).out.decode()


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "a" * 63, "sha256:" + "A" * 64, "sha256:../../../../etc/passwd", "md5:" + "a" * 64,
                                    "sha256:" + "../" * 21 + "a", "sha256:" + "a" * 64 + "/x", 7, None, "sha256:" + "a" * 63 + "\0"])
def test_hostile_digests(stores, digest):
    stores.manifest("registry.ollama.ai/library/evil/latest", {"layers": [{"mediaType": MODEL_LAYER, "digest": digest, "size": 5}]})
    assert "digest" in stores.list()["ollama:evil:latest"]["error"]
    error = stores.error("ollama:evil")
    assert error["exit"] == 1 and "digest" in error["message"], error


@pytest.mark.parametrize("text, exit_code", [
    (b"", 1), (b"{", 1), (b"[" * 200_000, 1), (b"null", 1), (b"[]", 1), (b'{"layers": 5}', 1), (b'{"layers": [1, null, {}]}', 4), (b"\xff\xfe\x00", 1),
    (b"{" + b" " * (300 << 10) + b"}", 1), (json.dumps({"layers": [{"mediaType": MODEL_LAYER, "digest": "sha256:" + "b" * 64}] * 2}).encode(), 4),
    (json.dumps({"layers": [{"mediaType": MODEL_LAYER, "digest": "sha256:" + "c" * 64, "size": 2**62}]}).encode(), 5),
], ids=lambda value: str(value)[:30])
def test_hostile_manifests(stores, text, exit_code):
    stores.manifest("registry.ollama.ai/library/evil/latest", text)
    assert stores.list()["ollama:evil:latest"]["error"]
    error = stores.error("ollama:evil")
    assert error["exit"] == exit_code and "evil" in error["message"], error


def test_a_manifest_that_would_need_much_memory(stores, tiny):
    """A quarter of a MiB of small objects is a hundred times that when they are parsed."""
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    stores.pull("registry.ollama.ai/library/wide/latest", tiny)
    layer = json.dumps({"mediaType": MODEL_LAYER, "digest": "sha256:" + digest})
    for i, filling in enumerate(("{},", "[],", '"",', "0,")):
        stores.manifest(f"registry.ollama.ai/library/wide/{i}", f'{{"layers":[{layer}], "x": [{filling * (240_000 // len(filling))}0]}}'.encode())
        done = weir_measured("plan", f"ollama:wide:{i}", "-c", 64, env=stores.env)
        assert done.code == 1 and "memory" in done.err, done.show()
        assert done.usage["max_rss"] < 13 << 20, (filling, done.usage)
    many = [{"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{i:064x}", "size": i, "from": ""} for i in range(1400)]
    stores.manifest("registry.ollama.ai/library/wide/honest", {"layers": [json.loads(layer), *many]})
    weir("plan", "ollama:wide:honest", "-c", 64, env=stores.env, expect=0)


def test_incomplete_download(stores, tiny):
    blob = stores.pull("registry.ollama.ai/library/cut/latest", tiny)
    data = tiny.read_bytes()
    blob.unlink()
    blob.write_bytes(data[:-100])
    error = stores.error("ollama:cut")
    assert str(len(data)) in error["message"] and str(len(data) - 100) in error["message"] and "pull" in error["message"]
    blob.unlink()
    assert "missing" in stores.error("ollama:cut")["message"] and "missing" in stores.list()["ollama:cut:latest"]["error"]


def test_loops_pipes_and_folders(stores, tiny):
    """Links to themselves, folders that hold themselves, pipes and devices: entries with a reason or nothing, and an end."""
    os.link(tiny, stores.own / "good.gguf")
    (stores.own / "loop.gguf").symlink_to("loop.gguf")
    (stores.own / "gone.gguf").symlink_to("nothing")
    (stores.own / "null.gguf").symlink_to("/dev/null")
    (stores.own / "folder.gguf").mkdir()
    os.mkfifo(stores.own / "pipe.gguf")
    (stores.own / "again").symlink_to(stores.own)
    manifests = stores.ollama / "manifests"
    manifests.mkdir()
    (manifests / "self").symlink_to(manifests)
    (manifests / "twice").symlink_to(manifests)
    os.mkfifo(manifests / "pipe")
    snapshot = stores.download("org/loop", {"a.gguf": tiny}) / "snapshots" / "abc123"
    (snapshot / "deep").symlink_to(snapshot)
    (snapshot / "in").mkdir()
    (snapshot / "in" / "out").symlink_to("..")
    os.link(tiny, snapshot / "in" / "c.gguf")
    (snapshot / "b.gguf").symlink_to("b.gguf")
    done = weir("list", "--json", env=stores.env, expect=0, timeout=120)
    models = {model["name"]: model for model in done.json["models"]}
    assert models["good"]["error"] is None
    assert {name for name in models if name.startswith("hf:")} == {"hf:org/loop:a.gguf", "hf:org/loop:b.gguf", "hf:org/loop:in/c.gguf"}
    for name in ("loop", "gone", "null", "pipe", "folder", "hf:org/loop:b.gguf"):
        assert models[name]["error"], name
    assert weir_json("run", "good", "hello", *GREEDY, env=stores.env)["finish"] == "length"


def test_names_that_lead_out_of_the_store(stores, tiny, tmp_path):
    """A name is looked up, never glued to a path unseen."""
    os.link(tiny, tmp_path / "outside.gguf")
    stores.download("org/one", {"one.gguf": tiny})
    (stores.ollama / "manifests" / "registry.ollama.ai" / "library").mkdir(parents=True)
    for name in ("ollama:../../../outside", "ollama:..", "ollama:a/b/c/d", "ollama:x:..", "ollama:", "ollama::", "ollama:a//b", "hf:..", "hf:", "hf:/", "hf:a/",
                 "hf:org/..", "hf:org/one/x", "hf:org/one:", "ollama:" + "x" * 5000, "hf:" + "x" * 5000, "hf:or\ng/one"):
        assert stores.error(name)["exit"] == 2, name
    for name in ("hf:org/one:../../../../../outside.gguf", "hf:org/one:/etc/passwd", "hf:org/two", "ollama:nobody"):
        assert stores.error(name)["exit"] == 5, name


@pytest.mark.parametrize("main", ["../../../..", "/etc", "", "abc123/..", "x" * 500, "not there", "\xff"])
def test_hostile_refs(stores, tiny, main):
    folder = stores.download("org/one", {"one.gguf": tiny})
    (folder / "refs" / "main").write_text(main)
    assert stores.list()["hf:org/one"]["error"]
    assert stores.error("hf:org/one")["exit"] in (1, 5)


def test_ambiguity_lists_the_choices(stores, tiny):
    stores.download("org/many-GGUF", {"many-Q4_0.gguf": tiny, "many-Q8_0.gguf": tiny, "UD/many-Q8_0.gguf": tiny})
    error = stores.error("hf:org/many-GGUF")
    assert error["exit"] == 2 and "many-Q4_0.gguf" in error["message"] and "many-Q8_0.gguf" in error["message"], error
    error = stores.error("hf:org/many-GGUF:Q8_0")
    assert error["exit"] == 2 and "UD/many-Q8_0.gguf" in error["message"] and "Q4_0" not in error["message"].split(":", 3)[3], error
    error = stores.error("hf:org/many-GGUF:Q5_K")
    assert error["exit"] == 5 and "Q5_K" in error["message"] and "many-Q4_0.gguf" in error["message"], error
    stores.download("org/wide", {f"a-rather-long-name-of-a-model-{i:03}.gguf": tiny for i in range(40)})
    assert re.search(r"and \d+ more$", stores.error("hf:org/wide")["message"])
    stores.download("org/two", {"a.gguf": tiny}, "first", main=False)
    stores.download("org/two", {"b.gguf": tiny}, "second", main=False)
    error = stores.error("hf:org/two")
    assert "first" in error["message"] and "second" in error["message"], error


def test_a_near_name_is_suggested(stores, tiny):
    os.link(tiny, stores.own / "smollm2-135m.gguf")
    stores.pull("registry.ollama.ai/library/llama3.2/1b", tiny)
    stores.pull("registry.ollama.ai/library/llama3.2/3b", tiny)
    stores.download("org/one-GGUF", {"one.gguf": tiny})
    for name, meant in (("smolm2-135m", "'smollm2-135m'"), ("llama3.2:1b", "'ollama:llama3.2:1b'"), ("org/one-GGUF", "'hf:org/one-GGUF'"),
                        ("nothing-like-it", "'weir list'"), ("no/such/file.gguf", "'weir list'"), ("ollama:llama3.2", "3b")):
        error = stores.error(name)
        assert error["exit"] == 5 and meant in error["message"], error
    assert "1b" in stores.error("ollama:llama3.2")["message"]


def test_names_that_are_not_utf8(stores, tiny):
    """JSON stays JSON, and the table has no control characters."""
    for name in (b"m\xff\xfe.gguf", b"two\nlines.gguf", b"bell\x07\x1b[31m.gguf", b"n" * 250 + b".gguf"):
        os.link(tiny, os.fsencode(stores.own) + b"/" + name)
    done = weir("list", "--json", env=stores.env, expect=0)
    assert len(json.loads(done.out.decode())["models"]) == 4
    table = weir("list", env=stores.env, expect=0).out
    assert len(table.splitlines()) == 5 and b"\x1b" not in table and b"\x07" not in table
    assert weir_json("plan", b"m\xff\xfe", env=stores.env)["file_bytes"] == tiny.stat().st_size


def test_small_stack(stores, tiny):
    """64 KiB of stack are enough to find models and to plan."""
    stores.pull("registry.ollama.ai/library/tiny/latest", tiny)
    stores.download("org/tiny", {"deep/in/tiny.gguf": tiny})
    for arguments in (("list", "--json"), ("plan", "ollama:tiny", "--json")):
        small = weir_measured(*arguments, stack=64 << 10, env=stores.env, expect=0)
        assert small.json.keys() == weir_json(*arguments[:-1], env=stores.env).keys()

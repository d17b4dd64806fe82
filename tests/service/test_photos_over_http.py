"""Health, models, detect, embed and verify: the recognizer's answers, over HTTP."""

import base64
import io
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest

from sphereface2 import Recognizer
from sphereface2.faces.face import TEMPLATE
from tests.models.onnx_files import SIDE, WIDTH
from tests.service.conftest import Start, code, in_base64

Pictures = dict[str, bytes]


def test_alive_and_ready(client: httpx.Client) -> None:
    found = client.get("/v1/health")
    assert found.status_code == 200
    assert (found.json()["alive"], found.json()["ready"]) == (True, True)
    assert client.get("/v1/health/ready").status_code == 200


def test_the_model_is_described(client: httpx.Client, place: Path) -> None:
    (model,) = client.get("/v1/models").json()["models"]
    recognizer = Recognizer(place / "model")
    assert model["digest"] == recognizer.digest
    assert (model["dim"], model["input_size"]) == (WIDTH, SIDE)
    assert model["calibrated"] is True


@pytest.mark.parametrize("form", [True, False])
def test_verify_gives_the_recognizers_answer(
    client: httpx.Client, place: Path, pictures: Pictures, form: bool
) -> None:
    options = {"false_accepts": "1 in 100", "prior": 0.1}
    if form:
        files = [("photo", pictures["a"]), ("person", pictures["b"]), ("person", pictures["c"])]
        answer = client.post("/v1/verify", files=files, data=options)
    else:
        person = [in_base64(pictures["b"]), in_base64(pictures["c"])]
        body = {"photo": in_base64(pictures["a"]), "person": person, **options}
        answer = client.post("/v1/verify", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    photos = [cv2.imread(str(place / f"{each}.png"))[..., ::-1] for each in "abc"]  # type: ignore[index]
    wanted = Recognizer(place / "model").verify(
        photos[0], photos[1:], false_accepts=0.01, prior=0.1
    )
    expected = wanted.to_mapping()
    assert found["words"] == expected["words"]
    assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
    assert found["threshold"] == expected["threshold"]
    assert found["false_accepts"]["interval"] == expected["false_accepts"]["interval"]
    for face, same in zip(found["photos"], expected["photos"], strict=True):
        assert face["box"] == same["box"]
        assert face["crop"] is None


def test_crops_come_with_their_points(client: httpx.Client, pictures: Pictures) -> None:
    files = [("photo", pictures["a"]), ("person", pictures["b"])]
    found = client.post("/v1/verify", files=files, params={"crops": "true"}).json()
    assert len(found["photos"]) == 2
    for face in found["photos"]:
        png = np.frombuffer(base64.b64decode(face["crop"]), np.uint8)
        crop = cv2.imdecode(png, cv2.IMREAD_COLOR)
        assert crop is not None
        assert crop.shape[:2] == tuple(face["crop_size"])
        assert np.abs(np.array(face["points"]) - TEMPLATE).mean() < 4


def test_embeddings_agree_with_the_recognizer(
    client: httpx.Client, place: Path, pictures: Pictures
) -> None:
    files = [("photos", pictures["a"]), ("photos", pictures["b"])]
    found = client.post("/v1/embed", files=files).json()
    rows = np.array(found["embeddings"], np.float32)
    wanted = Recognizer(place / "model").embed([place / "a.png", place / "b.png"])
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    packed = client.post("/v1/embed?encoding=base64", files=files).json()
    plain = np.frombuffer(base64.b64decode(packed["embeddings"]), "<f4").reshape(2, found["dim"])
    np.testing.assert_allclose(plain, rows, atol=1e-6)
    # A single picture need not stand in a list.
    one = client.post("/v1/embed", json={"photos": in_base64(pictures["a"])}).json()
    np.testing.assert_allclose(one["embeddings"], rows[:1], atol=1e-5)


def test_all_faces_are_detected_and_none_is_not_an_error(
    client: httpx.Client, pictures: Pictures
) -> None:
    found = client.post("/v1/detect", files={"photo": pictures["two"]}).json()
    wide = [face["box"][2] - face["box"][0] for face in found["faces"]]
    larger = client.post(
        "/v1/detect", files={"photo": pictures["two"]}, data={"choose": "largest"}
    ).json()
    assert found["chosen"] in (0, 1)
    assert wide[larger["chosen"]] == max(wide)
    assert len(found["faces"]) == 2
    assert (found["width"], found["height"]) == (420, 200)
    empty = client.post("/v1/detect", files={"photo": pictures["wall"]}).json()
    assert (empty["faces"], empty["chosen"]) == ([], None)


def test_the_calibration_shows_its_histogram(client: httpx.Client) -> None:
    found = client.get("/v1/calibration").json()
    assert found["calibrated"] is True
    assert (found["genuine"], found["impostor"]) == (
        sum(found["histogram"]["genuine"]),
        sum(found["histogram"]["impostor"]),
    )
    assert len(found["histogram"]["edges"]) == len(found["histogram"]["genuine"]) + 1
    assert found["false_accepts"] == 0.001
    assert found["threshold"] in [each["threshold"] for each in found["thresholds"]]


def test_without_a_calibration_there_is_no_decision(
    start: Start, place: Path, pictures: Pictures
) -> None:
    plain = start(model=place / "plain")
    found = plain.post(
        "/v1/verify", files=[("photo", pictures["a"]), ("person", pictures["b"])]
    ).json()
    assert found["accepted"] is None
    assert "not calibrated" in found["words"][0]
    assert plain.get("/v1/calibration").json()["calibrated"] is False
    asked = [("photo", pictures["a"]), ("person", pictures["b"])]
    refused = plain.post("/v1/verify", files=asked, data={"false_accepts": "0.1"})
    assert (refused.status_code, code(refused)) == (422, "invalid")


def test_the_openapi_names_every_route(client: httpx.Client) -> None:
    found = client.get("/v1/openapi.json").json()
    assert {"/v1/health", "/v1/models", "/v1/detect", "/v1/embed", "/v1/verify"} <= set(
        found["paths"]
    )
    body = found["paths"]["/v1/verify"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "multipart/form-data"}
    assert body["multipart/form-data"]["schema"]["properties"]["photo"]["format"] == "binary"


def test_metrics_count_requests_faces_batches_and_decisions(
    start: Start, pictures: Pictures
) -> None:
    client = start()
    files: Any = [("photo", pictures["a"]), ("person", io.BytesIO(pictures["a"]))]
    assert client.post("/v1/verify", files=files).json()["accepted"] is True
    text = client.get("/metrics").text
    for line in (
        'sphereface2_requests_total{method="POST",route="/v1/verify",status="200"} 1.0',
        "sphereface2_faces_total 2.0",
        "sphereface2_batch_faces_sum 2.0",
        'sphereface2_decisions_total{outcome="accepted",route="verify"} 1.0',
        "sphereface2_pending_requests 0.0",
    ):
        assert line in text


def test_the_page_and_its_policy(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_a_wrong_method_and_a_wrong_address(client: httpx.Client) -> None:
    wrong = client.get("/v1/verify")
    assert (wrong.status_code, code(wrong)) == (405, "method_not_allowed")
    for path in ("/v1/nothing", "/v1", "/nothing.html", "/../../etc/passwd", "/%2e%2e/%2e%2e/x"):
        gone = client.get(path)
        assert (gone.status_code, code(gone)) == (404, "not_found"), path

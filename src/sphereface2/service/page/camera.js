// A photo from the camera, in a dialog.

import { ask, button, el, put } from "./dom.js";
import { say } from "./words.js";

const TROUBLE = { NotAllowedError: "cameraDenied", SecurityError: "cameraDenied" };

// The photo as a file; undefined if the user closes the dialog without one.
export async function takePhoto() {
  const video = el("video", { autoplay: true, playsinline: true, "aria-label": say("photo.cameraView") });
  video.muted = true;
  const state = el("p", { role: "status" }, say("photo.cameraStarting"));
  let stream = null;
  let closed = false;
  const taken = await ask({
    title: say("photo.cameraTitle"),
    body: el("div", { class: "camera" }, video, state),
    actions: (close) => {
      const shutter = button(say("photo.cameraTake"), async () => close(await picture(video)), { class: "main" });
      shutter.disabled = true;
      start(video).then(
        (opened) => {
          stream = opened;
          if (closed) stop(stream);
          put(state);
          shutter.disabled = false;
          shutter.focus();
        },
        (error) => {
          const word = error.insecure ? "cameraInsecure" : TROUBLE[error.name] ?? "cameraMissing";
          put(state, say(`photo.${word}`));
        },
      );
      return [button(say("app.cancel"), () => close(undefined)), shutter];
    },
  });
  closed = true;
  if (stream) stop(stream);
  return taken;
}

async function start(video) {
  if (!navigator.mediaDevices) throw Object.assign(new Error(), { insecure: true });
  const stream = await navigator.mediaDevices.getUserMedia({
    video: { facingMode: "user", width: { ideal: 1280 }, height: { ideal: 960 } },
    audio: false,
  });
  video.srcObject = stream;
  await video.play();
  return stream;
}

function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
}

async function picture(video) {
  const canvas = el("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return new File([blob], `${say("photo.cameraFile")}.png`, { type: "image/png" });
}

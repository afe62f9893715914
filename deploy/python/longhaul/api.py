"""The coordinator's HTTP API."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

# Longer than the longest that a call for events waits for one, in seconds.
TIMEOUT_S = 40.0
# What a call for events asks the coordinator to wait, in seconds.
EVENTS_WAIT_S = 25
# No answer of the API is larger, in bytes.
ANSWER_BYTES_MAX = 64 << 20


class ApiError(Exception):
    """The coordinator did not answer, or answered that it could not."""

    def __init__(self, message: str, status: Optional[int] = None):
        super().__init__(message)
        #: The HTTP status; none: nobody answered.
        self.status = status


class Run:
    """A run, through its coordinator at ``address`` (``HOST:PORT``)."""

    def __init__(self, address: str, token: Optional[str] = None, timeout_s: float = TIMEOUT_S):
        self.address = address
        self._token = token
        self._timeout_s = timeout_s
        #: Whether the coordinator is known to have ended in order, as it does when its run is finished. Asked when it does not answer.
        self.is_over: Callable[[], bool] = lambda: False
        # A proxy of the surroundings is for the world outside; tokens do not go through it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    def of(cls, state_dir: Union[str, Path], timeout_s: float = TIMEOUT_S) -> "Run":
        """The run whose coordinator keeps its state in this folder, on this machine."""
        folder = Path(state_dir)
        try:
            address = (folder / "http-address").read_text().strip()
            token = (folder / "api-token").read_text().strip()
        except OSError as error:
            raise ApiError(f"{folder} is no state directory of a coordinator that has started: {error}") from error
        return cls(address, token, timeout_s)

    def status(self) -> Dict[str, Any]:
        """How the run goes: phase, round, loss, members, problems and more."""
        return self._get("/api/v1/status")

    def members(self) -> List[Dict[str, Any]]:
        """All workers, those that are gone included."""
        return self._get("/api/v1/members")

    def metrics(self) -> str:
        """The text that Prometheus reads."""
        return self._call("GET", "/metrics").decode()

    def watch(self, every_s: float = 5.0) -> Iterator[Dict[str, Any]]:
        """Statuses, one now and then, until the run is finished. Its last one is among them, unless the coordinator, which
        :func:`start` started without ``stay``, ended before it was asked again."""
        while True:
            try:
                status = self.status()
            except ApiError:
                if self.is_over():
                    return
                raise
            yield status
            if status["phase"] == "finished":
                return
            time.sleep(every_s)

    def events(self, after: int = 0, follow: bool = False) -> Iterator[Dict[str, Any]]:
        """What has happened, oldest first; with ``follow``, what happens, until the run is finished."""
        while True:
            wait = EVENTS_WAIT_S if follow else 0
            answer = self._get(f"/api/v1/events?after={after}&wait_s={wait}")
            yield from answer["events"]
            after = answer["next"]
            if not follow or (answer["finished"] and not answer["events"]):
                return

    def pause(self) -> None:
        """Lets nobody train until :meth:`resume`."""
        self._call("POST", "/api/v1/pause")

    def resume(self) -> None:
        """Lets training go on."""
        self._call("POST", "/api/v1/resume")

    def drain(self, worker: str) -> None:
        """Lets a worker (``w3``) leave in an orderly way."""
        self._call("POST", f"/api/v1/workers/{urllib.parse.quote(worker, safe='')}/drain")

    def kick(self, worker: str) -> Dict[str, Any]:
        """Takes a worker out for good."""
        return self._json(self._call("POST", f"/api/v1/workers/{urllib.parse.quote(worker, safe='')}/kick"))

    def stop(self) -> None:
        """Ends the run in an orderly way."""
        self._call("POST", "/api/v1/stop")

    def create_token(self, life_s: Optional[int] = None, uses: Optional[int] = None) -> Dict[str, Any]:
        """A join token; ``command`` of the answer is the line to paste."""
        body = json.dumps({"life_s": life_s, "uses": uses}).encode()
        return self._json(self._call("POST", "/api/v1/tokens", body))

    def tokens(self) -> List[Dict[str, Any]]:
        """The join tokens, without their secrets."""
        return self._get("/api/v1/tokens")

    def revoke_token(self, token_id: str) -> None:
        """Takes a join token back."""
        self._call("DELETE", f"/api/v1/tokens/{urllib.parse.quote(token_id, safe='')}")

    def _get(self, path: str) -> Any:
        return self._json(self._call("GET", path))

    def _json(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError as error:
            raise ApiError(f"{self.address} answers something that is no JSON: is it a coordinator?") from error

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        if method == "POST":
            request.data = body
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                answer: bytes = response.read(ANSWER_BYTES_MAX + 1)
                left = response.length
        except urllib.error.HTTPError as error:
            raise ApiError(self._reason(error), error.code) from error
        except http.client.HTTPException as error:
            raise ApiError(f"{self.address} does not speak HTTP: is it a coordinator? ({error!r})") from error
        except OSError as error:
            raise ApiError(f"no coordinator answers at {self.address}: {error}") from error
        if len(answer) > ANSWER_BYTES_MAX:
            raise ApiError(f"{self.address} answers more than {ANSWER_BYTES_MAX} bytes: is it a coordinator?")
        # Reads of a limited size do not say so themselves.
        if left:
            raise ApiError(f"the answer of {self.address} breaks off {left} bytes before its end")
        return answer

    @staticmethod
    def _reason(error: urllib.error.HTTPError) -> str:
        """What the coordinator says of a failure."""
        try:
            return str(json.loads(error.read(ANSWER_BYTES_MAX))["error"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return f"HTTP status {error.code}"

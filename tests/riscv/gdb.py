"""A program under QEMU, stopped wherever an instruction is illegal, which is then executed from outside.

QEMU speaks GDB's remote serial protocol (GDB manual, appendix E) over a socket: registers are read and written by
number, and its target description says which number is which.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.ime import oracle

SIGILL = 4
PATIENCE_SECONDS = 60

Execute = Callable[[int, int, oracle.Registers], None]
"""Run a word with a vtype on all vector registers, in place; raises ``oracle.Illegal`` for what stays illegal."""


class Stub:
    """The side of the protocol that asks."""

    def __init__(self, path: Path) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.connect(str(path))
                break
            except OSError:
                self._socket.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._received = b""
        self._acknowledges = True
        self.ask("qSupported:xmlRegisters=riscv")
        self._acknowledges = self.ask("QStartNoAckMode") != "OK"
        self.numbers = self._register_numbers()

    def close(self) -> None:
        self._socket.close()

    def ask(self, command: str) -> str:
        packet = f"${command}#{sum(command.encode()) % 256:02x}"
        self._socket.sendall(packet.encode())
        while (match := re.match(rb"[^$]*\$([^#]*)#..", self._received, re.S)) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("QEMU is gone")
            self._received += data
        self._received = self._received[match.end() :]
        if self._acknowledges:
            self._socket.sendall(b"+")
        return match[1].decode()

    def read(self, register: str) -> bytes:
        return bytes.fromhex(self.ask(f"p{self.numbers[register]:x}"))

    def write(self, register: str, value: bytes) -> None:
        if self.ask(f"P{self.numbers[register]:x}={value.hex()}") != "OK":
            raise RuntimeError(f"QEMU does not let {register} be written")

    def memory(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.ask(f"m{address:x},{size:x}"))

    def _register_numbers(self) -> dict[str, int]:
        numbers, number = {}, 0
        for feature in re.findall(r'href="([^"]+)"', self._feature("target.xml")):
            for attributes in re.findall(r"<reg ([^>]*)>", self._feature(feature)):
                named = dict(re.findall(r'(\w+)="([^"]*)"', attributes))
                number = int(named.get("regnum", number))
                numbers[named["name"]] = number
                number += 1
        return numbers

    def _feature(self, name: str) -> str:
        text = ""
        while True:
            part = self.ask(f"qXfer:features:read:{name}:{len(text):x},ffb")
            text += part[1:]
            if part[0] == "l":
                return text


def run(qemu: list[str], path: Path, execute: Execute) -> tuple[int, int]:
    """The exit code of the program that ``qemu`` begins with, and how many words ``execute`` ran; through a socket."""
    arguments = [qemu[0], "-g", str(path), *qemu[1:]]
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL) as process:
        try:
            stub = Stub(path)
            executed, answer = 0, stub.ask("c")
            while answer[0] not in "WX":
                passes_on = int(answer[1:3], 16)
                if passes_on == SIGILL and _execute(stub, execute):
                    executed, passes_on = executed + 1, 0
                answer = stub.ask(f"C{passes_on:02x}" if passes_on else "c")
            stub.close()
            return int(answer[1:3], 16), executed
        finally:
            process.kill()


def _execute(stub: Stub, execute: Execute) -> bool:
    pc = int.from_bytes(stub.read("pc"), "little")
    word = int.from_bytes(stub.memory(pc, 4), "little")
    if oracle.decode(word) is None:
        return False
    before = np.array([np.frombuffer(stub.read(f"v{number}"), np.uint8) for number in range(32)])
    after = before.copy()
    try:
        execute(word, int.from_bytes(stub.read("vtype"), "little"), after)
    except oracle.Illegal:
        return False
    for number in np.flatnonzero((before != after).any(axis=1)):
        stub.write(f"v{number}", after[number].tobytes())
    stub.write("pc", (pc + 4).to_bytes(8, "little"))
    return True

#!/usr/bin/env python3
"""Turns captures of NFS/RDMA over soft-iWARP into test vectors, and judges captures by tshark.

    vectors.py make CAPTURE TITLE >FILE    one vector for every kind of message, as tests/vectors reads them
    vectors.py all CAPTURE TITLE >FILE     the same with every frame of the capture
    vectors.py judge CAPTURE               what tshark dissected, and a failure for anything malformed

A vector is the bytes of one MPA frame or FPDU, cut from the TCP stream here, and beside them what tshark, which
shares no code with this project, dissected in it. Lines: `vector NAME`, `from client|server`, `crc on|off`,
`procedure N` (of NFSv3, for messages with a transport header), `bytes HEX` (several), then `FIELD VALUE` in the order
of the wire, numbers in decimal.
"""

import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

MPA_REQUEST, MPA_REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
# The fields that are compared, by tshark's names. The others are text, reserved bits, or computed by tshark.
FIELDS = {
    "iwarp_mpa": "marker_flag crc_flag rej_flag rev pdlength privatedata ulpdulength",
    "iwarp_ddp": "tagged_flag last_flag dv qn msn mo stag tagged_offset",
    "iwarp_rdma": "version opcode inval_stag sinkstag sinkto rdmardsz srcstag srcto term_layer term_etype "
                  "term_errcode",
    "rpcordma": "xid version flow_control msg_type position segment_count rdma_handle rdma_length rdma_offset "
                "reads_count writes_count reply_count",
    "rpc": "xid msgtyp version program programversion procedure replystat state_accept",
}
WANTED = {f"{protocol}.{name}" for protocol, names in FIELDS.items() for name in names.split()}
# Dissectors that show two protocols in one layer.
PARTS = {"iwarp_ddp_rdmap": ("iwarp_ddp", "iwarp_rdma")}
# tshark also states these for a reply, but takes them from the call: they are not in the bytes.
FROM_CALL = {"rpc.program", "rpc.programversion", "rpc.procedure"}
LARGEST = 4200  # bytes of a vector


class Unit:
    """An MPA frame or FPDU: direction, bytes, dissected fields."""

    def __init__(self, source, data):
        self.source, self.data, self.crc = source, data, False
        self.fields, self.program, self.procedure, self.status, self.malformed = [], None, None, None, False

    def take(self, view):
        """tshark's view of the same bytes."""
        self.fields, self.malformed = view.fields, view.malformed
        self.program, self.procedure, self.status = view.program, view.procedure, view.status
        # For an RPC message that is not complete in this frame, tshark shows data that it has reassembled elsewhere.
        if view.first("rpcordma.msg_type") != "0":
            self.fields = [(field, value) for field, value in view.fields if not field.startswith("rpc.")]
        elif view.first("rpc.msgtyp") == "1":
            self.fields = [(field, value) for field, value in view.fields if field not in FROM_CALL]

    def all(self, name):
        return [value for field, value in self.fields if field == name]

    def first(self, name, default=None):
        return next(iter(self.all(name)), default)


def packets(path):
    """TCP segments of a pcap file of Ethernet frames: (source, destination, sequence number, flags, payload)."""
    with open(path, "rb") as file:
        head = file.read(24)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">"}[head[:4]]
        if struct.unpack(order + "I", head[20:])[0] != 1:
            raise SystemExit("not a capture of Ethernet frames")
        while record := file.read(16):
            length = struct.unpack(order + "IIII", record)[2]
            frame = file.read(length)
            kind, ip = frame[12:14], frame[14:]
            if kind == b"\x08\x00" and ip[9] == 6:
                tcp = ip[(ip[0] & 15) * 4:struct.unpack(">H", ip[2:4])[0]]
                here, there = ip[12:16], ip[16:20]
            elif kind == b"\x86\xdd" and ip[6] == 6:
                tcp, here, there = ip[40:40 + struct.unpack(">H", ip[4:6])[0]], ip[8:24], ip[24:40]
            else:
                continue
            ports = struct.unpack(">HHI", tcp[:8])
            yield (here, ports[0]), (there, ports[1]), ports[2], tcp[13], tcp[(tcp[12] >> 4) * 4:]


def streams(path):
    """Each connection of the capture: {"client": bytes, "server": bytes}, in order of their SYN."""
    found, order = {}, []
    for source, target, sequence, flags, payload in packets(path):
        key = (source, target) if (source, target) in found else (target, source)
        if flags & 2 and not flags & 16:  # SYN of the client
            key = (source, target)
            found[key] = {}
            order.append(key)
        if key not in found:
            continue
        sides = found[key]
        side = "client" if source == key[0] else "server"
        if flags & 2:
            sides[side] = (sequence + 1, {})
        elif side in sides and payload:
            start, parts = sides[side]
            parts.setdefault((sequence - start) & 0xFFFFFFFF, payload)
    result = []
    for key in order:
        out = {}
        for side, (_, parts) in found[key].items():
            data = bytearray()
            for at in sorted(parts):
                if at > len(data):
                    raise SystemExit(f"the capture misses bytes {len(data)} to {at} of a {side}")
                data[at:at + len(parts[at])] = parts[at]
            out[side] = bytes(data)
        result.append((key, out))
    return result


def cut(side, data):
    """Cuts one direction of a connection into its MPA frame and FPDUs (RFC 5044 section 4: without markers)."""
    if data[:16] not in (MPA_REQUEST, MPA_REPLY):
        return
    end = 20 + struct.unpack(">H", data[18:20])[0]
    yield Unit(side, data[:end])
    while end + 2 <= len(data):
        length = struct.unpack(">H", data[end:end + 2])[0]
        whole = (2 + length + 3) // 4 * 4 + 4
        if end + whole > len(data):
            return
        yield Unit(side, data[end:end + whole])
        end += whole


def number(text):
    """tshark's text of a value, numbers in decimal, bytes in hex."""
    if text.startswith("0x"):
        return str(int(text, 16))
    return text.replace(":", "") if text != "False" and text != "True" else str(int(text == "True"))


def dissect(path, key):
    """tshark's units of one connection, per direction, in order."""
    client, server = key
    wanted = f"tcp.port == {client[1]} && tcp.port == {server[1]} && (iwarp_mpa || _ws.malformed)"
    process = subprocess.Popen(
        ["tshark", "-n", "-r", path, "-2", "-Y", wanted, "-T", "pdml", "-o", "tcp.try_heuristic_first:TRUE",
         "-o", "tcp.reassemble_out_of_order:TRUE"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    sides = {"client": [], "server": []}
    for _, packet in ElementTree.iterparse(process.stdout):
        if packet.tag != "packet":
            continue
        side, unit = None, None
        for protocol in packet:
            name = protocol.get("name")
            if name == "tcp":
                port = next(f.get("show") for f in protocol.iter("field") if f.get("name") == "tcp.srcport")
                side = sides["client" if int(port) == client[1] else "server"]
            elif name == "iwarp_mpa":
                unit = Unit(None, b"")
                side.append(unit)
            if unit is None:
                continue
            malformed = any(f.get("name") == "_ws.malformed" for f in protocol.iter("field"))
            if name in ("_ws.malformed", "malformed") or malformed:
                unit.malformed = True
            for field in protocol.iter("field"):
                what, value = field.get("name"), field.get("show")
                if what == "rpc.program":
                    unit.program = value
                if what in ("nfs.procedure_v3", "rpc.procedure") and unit.procedure is None:
                    unit.procedure = int(value)
                if what in ("nfs.status", "nfs.status3") and unit.status is None:
                    unit.status = value
                if what in WANTED and what.split(".")[0] in (name, *PARTS.get(name, ())):
                    unit.fields.append((what, number(value)))
        packet.clear()
    if process.wait() != 0:
        raise SystemExit("tshark failed")
    return sides


def recut(path, key, sides, to):
    """Writes the connection to `to` as a new capture, with each of `sides` (its units) in a segment of its own.

    tshark loses the stream where a full window ended a segment in the middle of an FPDU.
    """
    ends = {side: 0 for side in sides}
    queues, first, order = {side: list(units) for side, units in sides.items()}, {}, []
    got = {side: {} for side in sides}
    for source, target, sequence, flags, payload in packets(path):
        if {source, target} != set(key):
            continue
        side = "client" if source == key[0] else "server"
        if flags & 2:
            first[side] = sequence + 1
        elif side in first and payload:
            got[side].setdefault((sequence - first[side]) & 0xFFFFFFFF, len(payload))
            while ends[side] in got[side]:
                ends[side] += got[side].pop(ends[side])
        sent = sum(len(unit.data) for at, unit in order if at == side)
        while queues.get(side) and sent + len(queues[side][0].data) <= ends[side]:
            sent += len(queues[side][0].data)
            order.append((side, queues[side].pop(0)))
    at = {"client": 1000, "server": 1000}

    def frame(side, flags, payload=b""):
        (here, port), (there, to_port) = key if side == "client" else key[::-1]
        other = "server" if side == "client" else "client"
        tcp = struct.pack(">HHIIBBHHH", port, to_port, at[side], at[other], 0x50, flags, 65535, 0, 0) + payload
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + here + there
        whole = bytes(12) + b"\x08\x00" + ip + tcp
        at[side] += len(payload) + (flags >> 1 & 1)
        return struct.pack("<IIII", 0, 0, len(whole), len(whole)) + whole

    with open(to, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1))
        file.write(frame("client", 2) + frame("server", 18))
        for side, unit in order:
            file.write(frame(side, 24, unit.data))


def units(path):
    """Every unit of the capture with tshark's view of it; an error if both split the stream differently."""
    result = []
    for key, sides in streams(path):
        seen = dissect(path, key)
        whole = {side: list(cut(side, data)) for side, data in sides.items()}
        if len(key[0][0]) == 4 and any(len(seen[side]) < len(whole[side]) for side in whole):
            with tempfile.NamedTemporaryFile(prefix="nfsrdma-recut.") as again:
                recut(path, key, whole, again.name)
                seen = dissect(again.name, key)
        crc = False
        for side in ("client", "server"):
            mine = list(cut(side, sides.get(side, b"")))
            theirs = seen[side]
            if len(mine) != len(theirs):
                raise SystemExit(f"{side}: {len(mine)} frames in the stream, {len(theirs)} dissected by tshark")
            for unit, view in zip(mine, theirs):
                unit.take(view)
                length = unit.first("iwarp_mpa.ulpdulength")
                if length is not None and int(length) != struct.unpack(">H", unit.data[:2])[0]:
                    raise SystemExit(f"{side}: lengths differ: {unit.data[:20].hex()} {unit.fields}")
                if unit.first("iwarp_mpa.crc_flag") is not None:
                    crc = unit.first("iwarp_mpa.crc_flag") == "1"
                unit.crc = crc
            result += mine
    return result


OPCODES = {"0": "write", "1": "read-request", "2": "read-response", "3": "send", "4": "send-invalidate",
           "5": "send-se", "6": "send-se-invalidate", "7": "terminate"}
PROCEDURES = ("null getattr setattr lookup access readlink read write create mkdir symlink mknod remove rmdir rename "
              "link readdir readdirplus fsstat fsinfo pathconf commit").split()
KINDS = {"0": "msg", "1": "nomsg", "2": "msgp", "3": "done", "4": "error"}


def name(unit):
    """The kind of message of a unit; one vector of each kind is kept."""
    if unit.data[:16] in (MPA_REQUEST, MPA_REPLY):
        return "mpa-request" if unit.data[:16] == MPA_REQUEST else "mpa-reply"
    words = [OPCODES.get(unit.first("iwarp_rdma.opcode"), "?")]
    if unit.first("iwarp_ddp.last_flag") == "0":
        words.append("part")
    if unit.first("rpcordma.xid") is not None:
        words.append(KINDS.get(unit.first("rpcordma.msg_type"), "?"))
        for what, label in (("reads", "read"), ("writes", "write"), ("reply", "reply")):
            if int(unit.first(f"rpcordma.{what}_count", "0")):
                words.append(f"{label}-chunk")
        if len(unit.all("rpcordma.rdma_handle")) > 1:
            words.append("segments")
        if unit.program == "100003" and unit.procedure is not None:
            words.append(PROCEDURES[unit.procedure])
        elif unit.program:
            words.append(f"program-{unit.program}")
        if (unit.status or "0") != "0":
            words.append(f"status-{unit.status}")
    return "-".join(words)


def show(unit, label):
    print(f"vector {label}\nfrom {unit.source}\ncrc {'on' if unit.crc else 'off'}")
    if unit.program == "100003" and unit.procedure is not None and unit.first("rpcordma.msg_type") is not None:
        print(f"procedure {unit.procedure}")
    text = unit.data.hex()
    for at in range(0, len(text), 112):
        print(f"bytes {text[at:at + 112]}")
    for field, value in unit.fields:
        print(f"{field} {value}")
    print()


def make(path, title, everything):
    print(f"# {title}\n# Made by tests/system/interop/vectors.py; fields as tshark dissected them.\n")
    taken = {}
    for unit in units(path):
        label = name(unit)
        key = (unit.source, label)
        if everything:
            show(unit, label)
        elif len(unit.data) <= LARGEST and (key not in taken or len(unit.data) < len(taken[key].data) // 4):
            taken[key] = unit
    for (_, label), unit in sorted(taken.items()):
        show(unit, label)


def judge(path):
    """The numbers of dissected messages; an error for anything malformed that tshark can decode."""
    counts, wrong, over = {}, [], 0
    for unit in units(path):
        label = f"{unit.source} {name(unit)}"
        counts[label] = counts.get(label, 0) + 1
        # Messages that tshark 4.0 cannot decode: it misses the data of a READ or READLINK reply that went into a Write
        # chunk; it takes each segment of a Send for a message (and stops with "Dissector bug"); and it mixes up data from
        # tagged segments when connections follow each other.
        placed = unit.source == "server" and unit.procedure in (5, 6) and int(unit.first("rpcordma.writes_count", "0"))
        piece = unit.first("iwarp_ddp.mo", "0") != "0" or unit.first("iwarp_ddp.last_flag") == "0"
        if unit.malformed and (placed or piece or unit.first("iwarp_ddp.tagged_flag") == "1"):
            over += 1
        elif unit.malformed:
            wrong.append(f"{label}: {unit.data[:80].hex()}")
    for label in sorted(counts):
        print(f"{counts[label]:7} {label}")
    print(f"{over:7} passed over: called malformed for want of their other half")
    if not counts:
        raise SystemExit("nothing dissected")
    if wrong:
        raise SystemExit("malformed by tshark's judgement:\n" + "\n".join(wrong[:10]))


def main():
    words = sys.argv[1:]
    if words[:1] == ["judge"] and len(words) == 2:
        judge(words[1])
    elif words[:1] in (["make"], ["all"]) and len(words) == 3:
        make(words[1], words[2], words[0] == "all")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

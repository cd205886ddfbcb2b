"""Listens to the KV events of engines: kv_events.py PORT…

It ends when each has published that it stored blocks, and checks what such an
event must say to be of use.
"""

import sys

import msgspec
import zmq

WAIT = 600_000  # milliseconds without any event

poller, ports = zmq.Poller(), {}
context = zmq.Context()
for port in sys.argv[1:]:
    socket = context.socket(zmq.SUB)
    socket.connect("tcp://127.0.0.1:" + port)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    poller.register(socket, zmq.POLLIN)
    ports[socket] = port
print("listening", flush=True)

while ports:
    ready = poller.poll(WAIT)
    if not ready:
        sys.exit(f"no event from {sorted(ports.values())}")
    for socket, _ in ready:
        topic, sequence, payload = socket.recv_multipart()
        batch = msgspec.msgpack.decode(payload)
        for event in batch[1]:
            kind = event["type"] if isinstance(event, dict) else event[0]
            if kind != "BlockStored" or socket not in ports:
                continue
            print(ports[socket], topic.decode(), int.from_bytes(sequence, "big"), str(event)[:300], flush=True)
            if isinstance(event, dict):
                hashes, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
            else:
                hashes, _, tokens, size = event[1:5]
            assert batch[0] > 0 and len(sequence) == 8, batch
            assert hashes and len(tokens) == len(hashes) * size, event
            del ports[socket]

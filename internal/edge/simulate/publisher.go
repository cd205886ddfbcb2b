package simulate

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"time"
)

// publisher publishes the engine's KV events over ZeroMQ as vLLM does: a PUB
// socket, and a ROUTER socket that replays what it still has. It speaks the part
// of ZMTP 3.0 that such sockets need.
type publisher struct {
	log   *slog.Logger
	topic string

	mu          sync.Mutex
	seq         uint64
	batches     [][]byte // payloads of seq-len(batches) on
	subscribers map[*subscriber]bool
	contents    map[uint64]content // of blocks that sequences have, by key
}

// content is what an event tells of a block besides its key.
type content struct {
	parent    uint64 // key of the block before it
	hasParent bool
	text      string
	adapter   string
	users     int // sequences that have it
}

// keptBatches is how many batches can be replayed, as in vLLM.
const keptBatches = 10_000

// subscriberQueue is how many batches wait for a subscriber; more are dropped,
// as at ZeroMQ's high-water mark.
const subscriberQueue = 1000

type subscriber struct {
	queue chan []byte // messages
}

func newPublisher(topic string, log *slog.Logger) *publisher {
	return &publisher{log: log, topic: topic, subscribers: map[*subscriber]bool{}, contents: map[uint64]content{}}
}

// describe notes what the blocks of a sequence contain; withdraw ends that.
func (p *publisher) describe(keys []uint64, text, adapter string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, k := range keys {
		c := p.contents[k]
		if c.users++; c.users == 1 {
			c.text, c.adapter = text[i*BlockBytes:(i+1)*BlockBytes], adapter
			if i > 0 {
				c.parent, c.hasParent = keys[i-1], true
			}
		}
		p.contents[k] = c
	}
}

func (p *publisher) withdraw(keys []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		c := p.contents[k]
		if c.users--; c.users <= 0 {
			delete(p.contents, k)
		} else {
			p.contents[k] = c
		}
	}
}

// change publishes that a block came into the prefix cache or left it.
func (p *publisher) change(key uint64, stored bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var event []byte
	if stored {
		c, ok := p.contents[key]
		if !ok {
			return
		}
		event = storedEvent(key, c)
	} else {
		event = append(packText(packText(packText([]byte{0x83}, "type"), "BlockRemoved"), "block_hashes"), 0x91)
		event = packText(packText(packUint(event, key), "medium"), "GPU")
	}
	batch := append([]byte{0x93, 0xcb}, binary.BigEndian.AppendUint64(nil, math.Float64bits(float64(time.Now().UnixNano())/1e9))...)
	batch = append(append(append(batch, 0x91), event...), 0)
	if p.batches = append(p.batches, batch); len(p.batches) > 2*keptBatches {
		p.batches = append([][]byte(nil), p.batches[keptBatches:]...)
	}
	message := zmqFrame(nil, 1, []byte(p.topic))
	message = zmqFrame(message, 1, binary.BigEndian.AppendUint64(nil, p.seq))
	message = zmqFrame(message, 0, batch)
	p.seq++
	for s := range p.subscribers {
		select {
		case s.queue <- message:
		default:
		}
	}
}

// storedEvent is a BlockStored as vLLM 0.32 encodes it: a map.
func storedEvent(key uint64, c content) []byte {
	e := append(packText(packText(packText([]byte{0x88}, "type"), "BlockStored"), "block_hashes"), 0x91)
	e = packText(packUint(e, key), "parent_block_hash")
	if c.hasParent {
		e = packUint(e, c.parent)
	} else {
		e = append(e, 0xc0)
	}
	e = append(packText(e, "token_ids"), 0xdc, 0, BlockTokens)
	for _, t := range tokenIDs(c.text) {
		e = packUint(e, uint64(t))
	}
	e = append(packText(e, "block_size"), BlockTokens)
	e = append(packText(e, "lora_id"), 0xc0)
	e = packText(packText(packText(e, "medium"), "GPU"), "lora_name")
	if c.adapter == "" {
		return append(e, 0xc0)
	}
	return packText(e, c.adapter)
}

// tokenIDs are the tokens of a text: four bytes each.
func tokenIDs(text string) []uint32 {
	out := make([]uint32, 0, tokensIn(len(text)))
	for len(text) > 0 {
		var word [TokenBytes]byte
		text = text[copy(word[:], text):]
		out = append(out, binary.LittleEndian.Uint32(word[:]))
	}
	return out
}

func packUint(dst []byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), n)
}

// packText appends a string of less than 64 KiB.
func packText(dst []byte, s string) []byte {
	return append(append(dst, 0xda, byte(len(s)>>8), byte(len(s))), s...)
}

// serve accepts connections of one kind of socket until ctx is done.
func (p *publisher) serve(ctx context.Context, l net.Listener, socket string, handle func(net.Conn)) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			hangUp := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer hangUp()
			defer func() { _ = c.Close() }() // the peer sees the end
			if err := zmqGreet(c, socket); err != nil {
				p.log.Debug("a ZeroMQ client was refused", "error", err)
				return
			}
			handle(c)
		}()
	}
}

// publish sends a subscriber what it asks for.
func (p *publisher) publish(c net.Conn) {
	s := &subscriber{queue: make(chan []byte, subscriberQueue)}
	gone := make(chan struct{})
	go func() { // the topics come as messages
		defer close(gone)
		for {
			frames, err := zmqMessage(c)
			if err != nil {
				return
			}
			if on := len(frames) == 1 && len(frames[0]) > 0 && frames[0][0] == 1; on && strings.HasPrefix(p.topic, string(frames[0][1:])) {
				p.mu.Lock()
				p.subscribers[s] = true
				p.mu.Unlock()
			}
		}
	}()
	defer func() {
		p.mu.Lock()
		delete(p.subscribers, s)
		p.mu.Unlock()
	}()
	for {
		select {
		case <-gone:
			return
		case m := <-s.queue:
			if _, err := c.Write(m); err != nil {
				return
			}
		}
	}
}

// replay answers requests for batches from a number on.
func (p *publisher) replay(c net.Conn) {
	for {
		frames, err := zmqMessage(c)
		if err != nil || len(frames) != 2 || len(frames[1]) != 8 {
			return
		}
		from := binary.BigEndian.Uint64(frames[1])
		p.mu.Lock()
		first := p.seq - uint64(len(p.batches))
		batches := p.batches
		p.mu.Unlock()
		var out []byte
		for i, b := range batches {
			if seq := first + uint64(i); seq >= from {
				out = zmqFrame(zmqFrame(zmqFrame(zmqFrame(out, 1, nil), 1, []byte(p.topic)), 1, binary.BigEndian.AppendUint64(nil, seq)), 0, b)
			}
		}
		out = zmqFrame(zmqFrame(zmqFrame(zmqFrame(out, 1, nil), 1, nil), 1, binary.BigEndian.AppendUint64(nil, math.MaxUint64)), 0, nil)
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// zmqGreet is the beginning of a connection: greetings and READY commands.
func zmqGreet(c net.Conn, socket string) error {
	var hello [64]byte
	hello[0], hello[8], hello[9], hello[10] = 0xff, 1, 0x7f, 3
	copy(hello[12:], "NULL")
	ready := append([]byte("\x05READY\x0bSocket-Type"), binary.BigEndian.AppendUint32(nil, uint32(len(socket)))...)
	if _, err := c.Write(zmqFrame(hello[:], 4, append(ready, socket...))); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return err
	}
	if hello[0] != 0xff || hello[10] < 3 {
		return errors.New("no greeting of ZMTP 3")
	}
	_, flags, err := zmqRead(c)
	if err == nil && flags&4 == 0 {
		err = errors.New("no READY command")
	}
	return err
}

// zmqFrame appends a frame: flags are 1 for more to come, 4 for a command.
func zmqFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = binary.BigEndian.AppendUint64(append(dst, flags|2), uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

func zmqMessage(c net.Conn) (frames [][]byte, err error) {
	for len(frames) < 8 {
		body, flags, err := zmqRead(c)
		if err != nil {
			return nil, err
		}
		if flags&4 != 0 {
			continue
		}
		if frames = append(frames, body); flags&1 == 0 {
			return frames, nil
		}
	}
	return nil, errors.New("too many frames")
}

// zmqRead reads a frame. Clients send short ones only.
func zmqRead(c net.Conn) (body []byte, flags byte, err error) {
	var head [2]byte
	if _, err = io.ReadFull(c, head[:]); err != nil {
		return nil, 0, err
	}
	if head[0]&2 != 0 {
		return nil, 0, errors.New("the frame is too long")
	}
	body = make([]byte, head[1])
	_, err = io.ReadFull(c, body)
	return body, head[0], err
}

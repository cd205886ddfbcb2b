package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// pullTimeout bounds one answer of a file.
const pullTimeout = 3 * time.Minute

// readBytes is how much huggingface_hub 2.4 reads at a time. With larger reads
// fewer, larger acknowledgements come back, and the server does more of the work
// of receiving.
const readBytes = 64 << 10

// pull gets bytes [from, to) of a file of size bytes over a connection of its
// own, and counts them. What comes is written to sum where it is not nil.
func pull(ctx context.Context, address, path string, from, to, size int64, sum io.Writer) error {
	c, err := (&net.Dialer{Timeout: answerTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := c.SetDeadline(time.Now().Add(pullTimeout)); err != nil {
		return err
	}
	want, ranged := http.StatusOK, ""
	if to-from < size {
		want, ranged = http.StatusPartialContent, fmt.Sprintf("Range: bytes=%d-%d\r\n", from, to-1)
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, address, ranged); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != want {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("answered %s: %s", resp.Status, said)
	}
	buf := make([]byte, readBytes)
	var n int64
	for {
		k, err := resp.Body.Read(buf)
		n += int64(k)
		if sum != nil {
			_, _ = sum.Write(buf[:k]) // a hash
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if n != to-from {
		return fmt.Errorf("sent %d bytes of %d", n, to-from)
	}
	return nil
}

// pullAll gets the first bytes of a file of size bytes, in that many ranges at a
// time.
func pullAll(ctx context.Context, address, path string, bytes, size int64, ranges int) error {
	var group sync.WaitGroup
	errs := make([]error, ranges)
	for i := range int64(ranges) {
		from, to := bytes*i/int64(ranges), bytes*(i+1)/int64(ranges)
		group.Go(func() { errs[i] = pull(ctx, address, path, from, to, size, nil) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// headRound asks for the header of a file over one connection, and gives the
// median time of an answer in milliseconds.
func headRound(ctx context.Context, address, path string) (float64, error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var took []float64
	for range headCount {
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+address+path, nil)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		took = append(took, time.Since(began).Seconds()*1e3)
		if err := resp.Body.Close(); err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("HEAD answered %s", resp.Status)
		}
	}
	return median(took), nil
}

// appears waits for a file.
func appears(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, err := os.Stat(path)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

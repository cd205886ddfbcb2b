package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// post writes an HTTP/1.1 request once, to be sent many times.
func post(path string, body []byte) []byte {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	return append([]byte(head), body...)
}

// connection sends requests one after the other. It is kept small, so that
// the client leaves the machine to what is measured.
type connection struct {
	net.Conn
	answers *bufio.Reader
}

// answerTimeout bounds the wait for one answer.
const answerTimeout = 30 * time.Second

func dial(address string) (*connection, error) {
	c, err := net.DialTimeout("tcp", address, answerTimeout)
	if err != nil {
		return nil, err
	}
	return &connection{c, bufio.NewReader(c)}, nil
}

// ask sends a request and reads the whole answer, which must be a 200.
func (c *connection) ask(request []byte) error {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("answered %s: %s", resp.Status, said)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// ask sends one request over a connection of its own.
func ask(address string, request []byte) error {
	c, err := dial(address)
	if err != nil {
		return err
	}
	return errors.Join(c.ask(request), c.Close())
}

// load is what a time of sending brought.
type load struct {
	answers int
	seconds float64
	p50     float64 // of one answer, in microseconds
}

// send keeps that many connections busy with a request, for d. Every answer
// must be a 200.
func send(ctx context.Context, address string, request []byte, connections int, d time.Duration) (load, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var group sync.WaitGroup
	took := make([][]float64, connections)
	errs := make([]error, connections)
	begin := time.Now()
	for i := range connections {
		group.Go(func() { took[i], errs[i] = repeat(ctx, address, request) })
	}
	group.Wait()
	all := slices.Concat(took...)
	if err := errors.Join(errs...); err != nil {
		return load{}, err
	}
	if len(all) == 0 {
		return load{}, errors.New("no answer in time")
	}
	return load{answers: len(all), seconds: time.Since(begin).Seconds(), p50: median(all)}, nil
}

// repeat sends a request over one connection until ctx ends, and gives the
// time of each answer in microseconds.
func repeat(ctx context.Context, address string, request []byte) ([]float64, error) {
	c, err := dial(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	var took []float64
	for ctx.Err() == nil {
		begin := time.Now()
		if err := c.ask(request); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(begin))/float64(time.Microsecond))
	}
	return took, nil
}

package weights

import (
	"context"
	"errors"
	"fmt"
	"io"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// ranged reads parts of a remote file, each by a request of its own.
type ranged struct {
	tree *artifact.Tree
	name string
}

func (r *ranged) readAt(ctx context.Context, p []byte, from int64) error {
	return r.tree.ReadAt(ctx, r.name, p, from)
}

func (r *ranged) Close() error { return nil }

// sequential reads a remote file whose server sends it whole, in one go.
type sequential struct {
	tree *artifact.Tree
	name string
	size int64
	body io.ReadCloser
	at   int64
}

func (q *sequential) readAt(ctx context.Context, p []byte, from int64) error {
	if q.body == nil || q.at != from {
		if err := q.Close(); err != nil {
			return err
		}
		body, err := q.tree.Open(ctx, q.name, from, q.size)
		if err != nil {
			return err
		}
		q.body, q.at = body, from
	}
	n, err := io.ReadFull(q.body, p)
	q.at += int64(n)
	if err != nil {
		return fmt.Errorf("the server broke off at byte %d of %d, and sends no parts of files to go on from there: %w", q.at, q.size, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

func (q *sequential) Close() error {
	if q.body == nil {
		return nil
	}
	err := q.body.Close()
	q.body = nil
	return err
}

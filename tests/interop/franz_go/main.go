// franz-go in every scenario: SCENARIO BOOTSTRAP_SERVERS NAME, one JSON object of facts per line (see ../scenarios.py).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	timeout          = 60 * time.Second
	firstTimestampMs = 1_700_000_000_000
	round            = 40
)

type facts map[string]any

var (
	servers, name string
	ctx           context.Context
	sizes         sync.Map // Member -> *atomic.Int64, how many partitions it owns now.
	codecs        = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	scenarios = map[string]func(option string){
		"produce": produce, "headers": headers, "group": group, "offsets": offsets, "idempotent": idempotent,
		"transactions": transactions, "transactionstates": transactionStates, "topics": topics, "groups": groups, "culprits": culprits, "versions": versions,
	}
)

func main() {
	word, option, _ := strings.Cut(os.Args[1], "-")
	servers, name = os.Args[2], os.Args[3]
	var cancel context.CancelFunc
	ctx, cancel = context.WithTimeout(context.Background(), timeout)
	defer cancel()
	scenarios[word](option)
}

func tell(told facts) {
	must(json.NewEncoder(os.Stdout).Encode(told))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(servers)}, options...)...)
	must(err)
	return made
}

func member(group string, options ...kgo.Opt) *kgo.Client {
	given := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(name), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	return client(append(given, options...)...)
}

func records(count int, label string) []*kgo.Record {
	made := make([]*kgo.Record, count)
	for number := range made {
		value := fmt.Sprintf("%s-%d %s", label, number, strings.Repeat("x", 100))
		made[number] = &kgo.Record{Topic: name, Key: fmt.Appendf(nil, "key-%d", number), Value: []byte(value)}
	}
	return made
}

// send returns each record's error, null for success, in order of the records.
func send(producer *kgo.Client, made []*kgo.Record) []any {
	fates := make([]any, len(made))
	for place, record := range made {
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) {
			var known *kerr.Error
			if errors.As(err, &known) {
				fates[place] = known.Message
			} else if err != nil {
				fates[place] = err.Error()
			}
		})
	}
	must(producer.Flush(ctx))
	return fates
}

func acknowledged(fates []any) int {
	return len(fates) - len(slices.DeleteFunc(slices.Clone(fates), func(fate any) bool { return fate == nil }))
}

// read returns everything that stands in the topic now.
func read(isolation kgo.IsolationLevel) []*kgo.Record {
	consumer := client(kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords())
	defer consumer.Close()
	ends, err := kadm.NewClient(consumer).ListEndOffsets(ctx, name)
	must(err)
	left := 0
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left++
		}
	})
	var found []*kgo.Record
	for left > 0 {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if !record.Attrs.IsControl() {
				found = append(found, record)
			}
			if end, _ := ends.Lookup(name, record.Partition); record.Offset == end.Offset-1 {
				left--
			}
		})
	}
	return found
}

func produce(codec string) {
	producer := client(kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(20*time.Millisecond))
	fates := send(producer, records(100, "value"))
	sent := map[string]string{}
	for _, record := range records(100, "value") {
		sent[string(record.Key)] = string(record.Value)
	}
	found := read(kgo.ReadCommitted())
	seen := map[string]string{}
	for _, record := range found {
		seen[string(record.Key)] = string(record.Value)
	}
	tell(facts{"acknowledged": acknowledged(fates), "read": len(found), "same": reflect.DeepEqual(seen, sent)})
}

func headers(string) {
	record := records(1, "value")[0]
	record.Headers = []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte{}}}
	send(client(), []*kgo.Record{record})
	found := [][]string{}
	for _, header := range read(kgo.ReadCommitted())[0].Headers {
		found = append(found, []string{header.Key, string(header.Value)})
	}
	tell(facts{"headers": found})
}

func fill(producer *kgo.Client, label string) {
	made := records(round, label)
	for number, record := range made {
		record.Partition = int32(number % 4)
	}
	send(producer, made)
}

func group(protocol string) {
	options := []kgo.Opt{
		kgo.OnPartitionsAssigned(func(_ context.Context, member *kgo.Client, partitions map[string][]int32) {
			change(member, len(partitions[name]))
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, member *kgo.Client, partitions map[string][]int32) {
			change(member, -len(partitions[name]))
		}),
		kgo.OnPartitionsLost(func(_ context.Context, member *kgo.Client, partitions map[string][]int32) {
			change(member, -len(partitions[name]))
		}),
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	seen := map[string]bool{}
	poll := func(done func() bool, members ...*kgo.Client) {
		for !done() {
			must(ctx.Err())
			for _, member := range members {
				short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				member.PollFetches(short).EachRecord(func(record *kgo.Record) { seen[string(record.Value)] = true })
				cancel()
			}
		}
	}
	fill(producer, "first")
	one := member(name+"-group", options...)
	poll(func() bool { return len(seen) == round }, one)
	tell(facts{"alone": size(one)})
	must(one.CommitUncommittedOffsets(ctx))
	two := member(name+"-group", options...)
	poll(func() bool { return size(one) == 2 && size(two) == 2 }, one, two)
	tell(facts{"together": []int{size(one), size(two)}})
	fill(producer, "second")
	poll(func() bool { return len(seen) == 2*round }, one, two)
	two.Close()
	poll(func() bool { return size(one) == 4 }, one)
	fill(producer, "third")
	poll(func() bool { return len(seen) == 3*round }, one)
	tell(facts{"after": size(one), "records": len(seen)})
	one.Close()
}

func change(member *kgo.Client, by int) {
	owned, _ := sizes.LoadOrStore(member, new(atomic.Int64))
	owned.(*atomic.Int64).Add(int64(by))
}

func size(member *kgo.Client) int {
	owned, _ := sizes.LoadOrStore(member, new(atomic.Int64))
	return int(owned.(*atomic.Int64).Load())
}

func offsets(string) {
	producer := client()
	for number, record := range records(100, "value") {
		record.Timestamp = time.UnixMilli(firstTimestampMs + 1000*int64(number))
		send(producer, []*kgo.Record{record})
	}
	next := func(member *kgo.Client) *kgo.Record {
		fetches := member.PollRecords(ctx, 1)
		must(fetches.Err())
		return fetches.Records()[0]
	}
	admin := kadm.NewClient(producer)
	first := member(name + "-group")
	record := next(first)
	for record.Offset < 29 {
		record = next(first)
	}
	must(first.CommitRecords(ctx, record))
	committed, err := admin.FetchOffsets(ctx, name+"-group")
	must(err)
	offset, _ := committed.Lookup(name, 0)
	tell(facts{"committed": offset.At})
	first.Close()
	second := member(name + "-group")
	tell(facts{"resumed": next(second).Offset})
	second.SetOffsets(map[string]map[int32]kgo.EpochOffset{name: {0: {Epoch: -1, Offset: 70}}})
	tell(facts{"sought": next(second).Offset})
	byTime, err := admin.ListOffsetsAfterMilli(ctx, firstTimestampMs+49_500, name)
	must(err)
	start, err := admin.ListStartOffsets(ctx, name)
	must(err)
	end, err := admin.ListEndOffsets(ctx, name)
	must(err)
	at := func(listed kadm.ListedOffsets) int64 { found, _ := listed.Lookup(name, 0); return found.Offset }
	tell(facts{"by_time": at(byTime), "beginning": at(start), "end": at(end)})
	second.Close()
}

func idempotent(string) {
	tell(facts{"acknowledged": acknowledged(send(client(), records(100, "value")))})
}

func transactions(string) {
	producer := client(kgo.TransactionalID(name + "-id"))
	admin := kadm.NewClient(client())
	for number, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		must(producer.BeginTransaction())
		send(producer, records(10, fmt.Sprintf("round %d", number)))
		if number < 2 {
			sendOffset(producer, int64(5+number))
		}
		must(producer.EndTransaction(ctx, commit))
	}
	committed, err := admin.FetchOffsets(ctx, name+"-group")
	must(err)
	offset, _ := committed.Lookup(name, 0)
	rounds := map[int]bool{}
	found := read(kgo.ReadCommitted())
	for _, record := range found {
		rounds[int(record.Value[6]-'0')] = true
	}
	order := []int{}
	for number := range 3 {
		if rounds[number] {
			order = append(order, number)
		}
	}
	tell(facts{"committed": len(found), "rounds": order, "uncommitted": len(read(kgo.ReadUncommitted())), "offset": offset.At})
}

// sendOffset does what GroupTransactSession does when a transaction ends, for a group without members.
func sendOffset(producer *kgo.Client, offset int64) {
	id, epoch, err := producer.ProducerID(ctx)
	must(err)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = name+"-id", id, epoch, name+"-group"
	added, err := add.RequestWith(ctx, producer)
	must(err)
	must(kerr.ErrorForCode(added.ErrorCode))
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = name+"-id", id, epoch, name+"-group"
	partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	partition.Partition, partition.Offset = 0, offset
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	described, err := kadm.NewClient(producer).ListTopics(ctx, name)
	must(err)
	topic.Topic, topic.TopicID, topic.Partitions = name, described[name].ID, append(topic.Partitions, partition) // By id from version 6 on.
	commit.Topics = append(commit.Topics, topic)
	committed, err := commit.RequestWith(ctx, producer)
	must(err)
	must(kerr.ErrorForCode(committed.Topics[0].Partitions[0].ErrorCode))
}

func transactionStates(string) {
	id := name + "-id"
	producer := client(kgo.TransactionalID(id))
	admin := kadm.NewClient(client())
	state := func() string {
		described, err := admin.DescribeTransactions(ctx, id)
		must(err)
		return strings.ToLower(described[id].State)
	}
	must(producer.BeginTransaction())
	send(producer, records(10, "value"))
	tell(facts{"open": state()})
	var place kadm.TopicsSet
	place.Add(name, 0)
	producers, err := admin.DescribeProducers(ctx, place)
	must(err)
	tell(facts{"producers": len(producers[name].Partitions[0].ActiveProducers)})
	must(producer.EndTransaction(ctx, kgo.TryCommit))
	until(func() bool { return strings.HasPrefix(state(), "complete") })
	listed, err := admin.ListTransactions(ctx, nil, nil)
	must(err)
	_, found := listed[id]
	tell(facts{"ended": state(), "listed": found})
}

// Waits for what brokers learn of each other.
func until(done func() bool) {
	for !done() {
		must(ctx.Err())
	}
}

func topics(string) {
	topic := name + "-made"
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	admin := kadm.NewClient(producer)
	value := "7200000"
	retention := func() string {
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		must(err)
		for _, config := range described[0].Configs {
			if config.Key == "retention.ms" {
				return config.MaybeValue()
			}
		}
		return ""
	}
	partitions := func() int {
		listed, err := admin.ListTopics(ctx, topic)
		must(err)
		return len(listed[topic].Partitions)
	}
	_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &value}, topic)
	must(err)
	tell(facts{"created": partitions()})
	_, err = admin.CreateTopic(ctx, 2, 1, nil, topic)
	tell(facts{"refused": errors.Is(err, kerr.TopicAlreadyExists), "config": retention()})
	value = "3600000"
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, topic)
	must(err)
	must(altered[0].Err)
	until(func() bool { return retention() == value })
	tell(facts{"altered": retention()})
	grown, err := admin.UpdatePartitions(ctx, 4, topic)
	must(err)
	must(grown.Error())
	tell(facts{"partitions": partitions()})
	made := records(10, "value")
	for _, record := range made {
		record.Topic, record.Partition = topic, 3
	}
	send(producer, made)
	var before kadm.Offsets
	before.AddOffset(topic, 3, 5, -1)
	_, err = admin.DeleteRecords(ctx, before)
	must(err)
	start, err := admin.ListStartOffsets(ctx, topic)
	must(err)
	first, _ := start.Lookup(topic, 3)
	tell(facts{"records_deleted": first.Offset})
	_, err = admin.DeleteTopic(ctx, topic)
	must(err)
	listed, err := admin.ListTopics(ctx)
	must(err)
	tell(facts{"deleted": !listed.Has(topic)})
}

func groups(string) {
	send(client(), records(10, "value"))
	reader := member(name + "-group")
	for count := 0; count < 10; {
		fetches := reader.PollFetches(ctx)
		must(fetches.Err())
		count += fetches.NumRecords()
	}
	must(reader.CommitUncommittedOffsets(ctx))
	reader.Close()
	admin := kadm.NewClient(client())
	isListed := func() bool {
		listed, err := admin.ListGroups(ctx)
		must(err)
		_, found := listed[name+"-group"]
		return found
	}
	tell(facts{"listed": isListed()})
	described, err := admin.DescribeGroups(ctx, name+"-group")
	must(err)
	tell(facts{"state": strings.ToLower(described[name+"-group"].State)})
	committed, err := admin.FetchOffsets(ctx, name+"-group")
	must(err)
	offset, _ := committed.Lookup(name, 0)
	tell(facts{"offset": offset.At})
	_, err = admin.DeleteGroup(ctx, name+"-group")
	must(err)
	tell(facts{"deleted": !isListed()})
}

func culprits(string) {
	producer := client(kgo.ProducerLinger(time.Second), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()))
	made := records(5, "v")
	made[1].Key, made[3].Key = nil, nil
	tell(facts{"fates": send(producer, made)})
}

func versions(string) {
	built, _ := debug.ReadBuildInfo()
	for _, module := range built.Deps {
		if module.Path == "github.com/twmb/franz-go" {
			tell(facts{"version": strings.TrimPrefix(module.Version, "v")})
		}
	}
}

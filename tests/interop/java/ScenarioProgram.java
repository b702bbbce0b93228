// kafka-clients in every scenario: SCENARIO BOOTSTRAP_SERVERS NAME, one JSON object of facts per line (see ../scenarios.py).

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ScenarioProgram {
    static final int TIMEOUT_S = 30;
    static final long FIRST_TIMESTAMP_MS = 1_700_000_000_000L;
    static final int ROUND = 40;
    static final String[] CULPRIT_KEYS = {"k", null, "k", null, "k"};

    static String servers;
    static String name;

    public static void main(String[] arguments) throws Exception {
        String[] scenario = arguments[0].split("-", 2);
        servers = arguments[1];
        name = arguments[2];
        switch (scenario[0]) {
            case "produce" -> produce(scenario[1]);
            case "headers" -> headers();
            case "group" -> group(scenario.length > 1 ? scenario[1] : "classic");
            case "offsets" -> offsets();
            case "idempotent" -> idempotent();
            case "transactions" -> transactions();
            case "transactionstates" -> transactionStates();
            case "topics" -> topics();
            case "groups" -> groups();
            case "culprits" -> culprits();
            case "versions" -> tell("version", quoted(version()));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    static void tell(String fact, Object value) {
        System.out.println("{\"" + fact + "\": " + value + "}");
    }

    // What the jar says of itself; the class that reads it has moved in 4.4.
    static String version() throws Exception {
        Properties told = new Properties();
        try (InputStream file = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            told.load(file);
        }
        return told.getProperty("version");
    }

    static String quoted(String text) {
        return "\"" + text + "\"";
    }

    static String value(String label, int number) {
        return label + "-" + number + " " + "x".repeat(100);
    }

    static KafkaProducer<String, String> producer(String... settings) {
        return new KafkaProducer<>(properties(settings), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, String... settings) {
        Properties properties = properties(settings);
        properties.putIfAbsent("group.id", group);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    static Properties properties(String... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        for (int index = 0; index < settings.length; index += 2) {
            properties.put(settings[index], settings[index + 1]);
        }
        return properties;
    }

    /** Send to one partition, or to those that the keys choose when it is null; the error of each record, null for success. */
    static List<String> send(KafkaProducer<String, String> producer, String topic, Integer partition, int count, String label) throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            futures.add(producer.send(new ProducerRecord<>(topic, partition, "key-" + number, value(label, number))));
        }
        return fates(producer, futures);
    }

    static List<String> fates(KafkaProducer<String, String> producer, List<Future<RecordMetadata>> futures) throws Exception {
        producer.flush();
        List<String> fates = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            try {
                future.get(TIMEOUT_S, SECONDS);
                fates.add(null);
            } catch (ExecutionException error) {
                fates.add(error.getCause().getClass().getSimpleName());
            }
        }
        return fates;
    }

    static long acknowledged(List<String> fates) {
        return fates.stream().filter(fate -> fate == null).count();
    }

    static List<ConsumerRecord<String, String>> read(String isolation) {
        try (KafkaConsumer<String, String> consumer = consumer(name + "-reader", "isolation.level", isolation)) {
            List<TopicPartition> places =
                    consumer.partitionsFor(name).stream().map(info -> new TopicPartition(name, info.partition())).collect(Collectors.toList());
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            List<ConsumerRecord<String, String>> found = new ArrayList<>();
            until(() -> {
                consumer.poll(Duration.ofMillis(100)).forEach(found::add);
                return places.stream().allMatch(place -> consumer.position(place) >= ends.get(place));
            });
            return found;
        }
    }

    static void until(BooleanSupplier done) {
        long limit = System.nanoTime() + SECONDS.toNanos(TIMEOUT_S);
        while (!done.getAsBoolean()) {
            if (System.nanoTime() > limit) {
                throw new IllegalStateException("nothing more after " + TIMEOUT_S + " s");
            }
        }
    }

    static void produce(String codec) throws Exception {
        try (KafkaProducer<String, String> producer = producer("compression.type", codec, "linger.ms", "20")) {
            tell("acknowledged", acknowledged(send(producer, name, null, 100, "value")));
        }
        List<ConsumerRecord<String, String>> found = read("read_committed");
        Set<String> seen = found.stream().map(record -> record.key() + " " + record.value()).collect(Collectors.toSet());
        Set<String> sent = IntStream.range(0, 100).mapToObj(number -> "key-" + number + " " + value("value", number)).collect(Collectors.toSet());
        tell("read", found.size());
        tell("same", seen.equals(sent));
    }

    static void headers() throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            ProducerRecord<String, String> record = new ProducerRecord<>(name, "k", "v");
            record.headers().add("a", "1".getBytes(UTF_8)).add("b", new byte[0]);
            producer.send(record).get(TIMEOUT_S, SECONDS);
        }
        List<String> found = new ArrayList<>();
        read("read_committed").get(0).headers().forEach(
                header -> found.add("[" + quoted(header.key()) + ", " + quoted(new String(header.value(), UTF_8)) + "]"));
        tell("headers", found);
    }

    static void group(String protocol) throws Exception {
        Set<String> seen = new HashSet<>();
        try (KafkaProducer<String, String> producer = producer();
                KafkaConsumer<String, String> one = consumer(name + "-group", "group.protocol", protocol)) {
            fill(producer, "first");
            one.subscribe(List.of(name));
            until(() -> poll(one, seen) && seen.size() == ROUND);
            tell("alone", one.assignment().size());
            one.commitSync();
            // A member joins from its own thread's poll only, so both are polled in turn.
            try (KafkaConsumer<String, String> two = consumer(name + "-group", "group.protocol", protocol)) {
                two.subscribe(List.of(name));
                until(() -> poll(one, seen) && poll(two, seen) && one.assignment().size() == 2 && two.assignment().size() == 2);
                tell("together", List.of(one.assignment().size(), two.assignment().size()));
                fill(producer, "second");
                until(() -> poll(one, seen) && poll(two, seen) && seen.size() == 2 * ROUND);
            }
            until(() -> poll(one, seen) && one.assignment().size() == 4);
            fill(producer, "third");
            until(() -> poll(one, seen) && seen.size() == 3 * ROUND);
            tell("after", one.assignment().size());
            tell("records", seen.size());
        }
    }

    static void fill(KafkaProducer<String, String> producer, String label) throws Exception {
        for (int partition = 0; partition < 4; partition++) {
            send(producer, name, partition, ROUND / 4, label + partition);
        }
    }

    static boolean poll(KafkaConsumer<String, String> member, Set<String> seen) {
        member.poll(Duration.ofMillis(50)).forEach(record -> seen.add(record.value()));
        return true;
    }

    static void offsets() throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int number = 0; number < 100; number++) {
                producer.send(new ProducerRecord<>(name, 0, FIRST_TIMESTAMP_MS + 1000 * number, "k", value("value", number))).get(TIMEOUT_S, SECONDS);
            }
        }
        TopicPartition place = new TopicPartition(name, 0);
        try (KafkaConsumer<String, String> first = consumer(name + "-group", "max.poll.records", "1")) {
            first.subscribe(List.of(name));
            until(() -> next(first) == 29);
            first.commitSync();
            tell("committed", first.committed(Set.of(place)).get(place).offset());
        }
        try (KafkaConsumer<String, String> second = consumer(name + "-group", "max.poll.records", "1")) {
            second.subscribe(List.of(name));
            tell("resumed", next(second));
            second.seek(place, 70);
            tell("sought", next(second));
            tell("by_time", second.offsetsForTimes(Map.of(place, FIRST_TIMESTAMP_MS + 49_500)).get(place).offset());
            tell("beginning", second.beginningOffsets(Set.of(place)).get(place));
            tell("end", second.endOffsets(Set.of(place)).get(place));
        }
    }

    static long next(KafkaConsumer<String, String> consumer) {
        List<Long> found = new ArrayList<>();
        until(() -> {
            consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.offset()));
            return !found.isEmpty();
        });
        return found.get(0);
    }

    static void idempotent() throws Exception {
        try (KafkaProducer<String, String> producer = producer("enable.idempotence", "true")) {
            tell("acknowledged", acknowledged(send(producer, name, null, 100, "value")));
        }
    }

    static void transactions() throws Exception {
        TopicPartition place = new TopicPartition(name, 0);
        try (KafkaProducer<String, String> producer = producer("transactional.id", name + "-id");
                KafkaConsumer<String, String> member = consumer(name + "-group")) {
            producer.initTransactions();
            for (int round = 0; round < 3; round++) {
                producer.beginTransaction();
                send(producer, name, null, 10, "round " + round);
                if (round < 2) {
                    producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(5 + round)), member.groupMetadata());
                }
                if (round == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            tell("offset", member.committed(Set.of(place)).get(place).offset());
        }
        List<ConsumerRecord<String, String>> committed = read("read_committed");
        tell("committed", committed.size());
        tell("rounds", committed.stream().map(record -> record.value().substring(6, 7)).collect(Collectors.toCollection(TreeSet::new)));
        tell("uncommitted", read("read_uncommitted").size());
    }

    static void transactionStates() throws Exception {
        String id = name + "-id";
        TopicPartition place = new TopicPartition(name, 0);
        try (Admin admin = Admin.create(properties()); KafkaProducer<String, String> producer = producer("transactional.id", id)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, name, null, 10, "value");
            tell("open", quoted(transactionState(admin, id)));
            tell("producers", admin.describeProducers(List.of(place)).all().get(TIMEOUT_S, SECONDS).get(place).activeProducers().size());
            producer.commitTransaction();
            until(() -> transactionState(admin, id).startsWith("complete"));
            tell("ended", quoted(transactionState(admin, id)));
            tell("listed", admin.listTransactions().all().get(TIMEOUT_S, SECONDS).stream().anyMatch(each -> each.transactionalId().equals(id)));
        }
    }

    static String transactionState(Admin admin, String id) {
        try {
            return admin.describeTransactions(List.of(id)).all().get(TIMEOUT_S, SECONDS).get(id).state().toString().toLowerCase();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static void topics() throws Exception {
        String topic = name + "-made";
        try (Admin admin = Admin.create(properties()); KafkaProducer<String, String> producer = producer()) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "7200000"));
            admin.createTopics(List.of(wanted)).all().get(TIMEOUT_S, SECONDS);
            tell("created", partitions(admin, topic));
            try {
                admin.createTopics(List.of(wanted)).all().get(TIMEOUT_S, SECONDS);
            } catch (ExecutionException refused) {
                tell("refused", refused.getCause() instanceof TopicExistsException);
            }
            tell("config", quoted(retention(admin, topic)));
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), List.of(change))).all().get(TIMEOUT_S, SECONDS);
            until(() -> "3600000".equals(retention(admin, topic)));
            tell("altered", quoted(retention(admin, topic)));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get(TIMEOUT_S, SECONDS);
            tell("partitions", partitions(admin, topic));
            send(producer, topic, 3, 10, "value");
            TopicPartition last = new TopicPartition(topic, 3);
            admin.deleteRecords(Map.of(last, RecordsToDelete.beforeOffset(5))).all().get(TIMEOUT_S, SECONDS);
            tell("records_deleted", admin.listOffsets(Map.of(last, OffsetSpec.earliest())).partitionResult(last).get(TIMEOUT_S, SECONDS).offset());
            admin.deleteTopics(List.of(topic)).all().get(TIMEOUT_S, SECONDS);
            tell("deleted", !admin.listTopics().names().get(TIMEOUT_S, SECONDS).contains(topic));
        }
    }

    static int partitions(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get(TIMEOUT_S, SECONDS).get(topic).partitions().size();
    }

    static String retention(Admin admin, String topic) {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try {
            return admin.describeConfigs(List.of(resource)).all().get(TIMEOUT_S, SECONDS).get(resource).get("retention.ms").value();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static void groups() throws Exception {
        String group = name + "-group";
        try (KafkaProducer<String, String> producer = producer()) {
            send(producer, name, null, 10, "value");
        }
        try (KafkaConsumer<String, String> member = consumer(group)) {
            member.subscribe(List.of(name));
            Set<String> seen = new HashSet<>();
            until(() -> poll(member, seen) && seen.size() == 10);
            member.commitSync();
        }
        try (Admin admin = Admin.create(properties())) {
            tell("listed", isListed(admin, group));
            tell("state", quoted(admin.describeConsumerGroups(List.of(group)).all().get(TIMEOUT_S, SECONDS).get(group).groupState().toString().toLowerCase()));
            Map<TopicPartition, OffsetAndMetadata> offsets =
                    admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(TIMEOUT_S, SECONDS);
            tell("offset", offsets.get(new TopicPartition(name, 0)).offset());
            admin.deleteConsumerGroups(List.of(group)).all().get(TIMEOUT_S, SECONDS);
            tell("deleted", !isListed(admin, group));
        }
    }

    static boolean isListed(Admin admin, String group) throws Exception {
        return admin.listGroups().all().get(TIMEOUT_S, SECONDS).stream().anyMatch(each -> each.groupId().equals(group));
    }

    static void culprits() throws Exception {
        try (KafkaProducer<String, String> producer = producer("linger.ms", "1000", "enable.idempotence", "false")) {
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            for (String key : CULPRIT_KEYS) {
                futures.add(producer.send(new ProducerRecord<>(name, 0, key, "v")));
            }
            tell("fates", fates(producer, futures).stream().map(ScenarioProgram::quoted).collect(Collectors.toList()));
        }
    }
}

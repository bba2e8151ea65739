// What people would pick in place of `receiver bridge`, for `python -m benchmarks peers`. Commands come as lines on standard
// input, and each is answered by a line. One process serves all turns, so Java is warm.
//
//   java -cp 'JARS/*' Peers.java BROKER_PORT JDBC_URL

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.QueueConnection;
import jakarta.jms.QueueRequestor;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.activemq.artemis.api.jms.ActiveMQJMSClient;
import org.apache.activemq.artemis.api.jms.management.JMSManagementHelper;
import org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory;
import org.apache.activemq.artemis.jms.client.ActiveMQQueueConnectionFactory;
import org.apache.camel.CamelContext;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.jms.JmsComponent;
import org.apache.camel.component.sql.SqlComponent;
import org.apache.camel.impl.DefaultCamelContext;
import org.apache.camel.processor.idempotent.jdbc.JdbcMessageIdRepository;
import org.apache.camel.spring.spi.SpringTransactionPolicy;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

public class Peers {
    private static final int POOL = 24;
    private static final int SHUTDOWN_SECS = 5;

    private final String broker;
    private final HikariDataSource database;
    private final QueueSession session;
    private final QueueRequestor management;
    private CamelContext camel;

    private Peers(String port, String jdbcUrl) throws Exception {
        broker = "tcp://127.0.0.1:" + port;
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(jdbcUrl);
        config.setMaximumPoolSize(POOL);
        database = new HikariDataSource(config);
        QueueConnection connection = new ActiveMQQueueConnectionFactory(broker).createQueueConnection();
        session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
        management = new QueueRequestor(session, (Queue) ActiveMQJMSClient.createQueue("activemq.management"));
        connection.start();
    }

    public static void main(String[] arguments) throws Exception {
        Peers peers = new Peers(arguments[0], arguments[1]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "done " + peers.answer(line.split(" "));
            } catch (Exception error) {
                error.printStackTrace();
                answer = "failed " + String.valueOf(error).replace('\n', ' ');
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    private Object answer(String[] words) throws Exception {
        switch (words[0]) {
            case "camel":
                return startCamel(words[1], Integer.parseInt(words[2]));
            case "end-camel":
                camel.stop();
                return "";
            case "bridge":
                return startBridge(words[1], words[2]);
            case "end-bridge":
                return managed("broker", "destroyBridge", words[1]);
            case "queue":
                return managed("broker", "createQueue", "{\"name\": \"" + words[1] + "\", \"routing-type\": \"ANYCAST\"}");
            case "count":
                return managed("queue." + words[1], "countMessages");
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    // Under a kill: id and row are in one transaction of the database, so a message whose acknowledgement was lost comes
    // again and is known. Nothing is lost, nothing doubled. The simple form of the documentation, without that transaction,
    // can record an id and lose its row; with eager=false it can write a row twice.
    private Object startCamel(String queue, int consumers) throws Exception {
        DataSourceTransactionManager transactions = new DataSourceTransactionManager(database);
        camel = new DefaultCamelContext();
        camel.getShutdownStrategy().setTimeout(SHUTDOWN_SECS);
        JmsComponent jms = JmsComponent.jmsComponent(new ActiveMQConnectionFactory(broker));
        camel.addComponent("jms", jms);
        SqlComponent sql = new SqlComponent();
        sql.setDataSource(database);
        camel.addComponent("sql", sql);
        camel.getRegistry().bind("oneTransaction", new SpringTransactionPolicy(transactions));
        JdbcMessageIdRepository known =
                new JdbcMessageIdRepository(database, new TransactionTemplate(transactions), queue);
        camel.addRoutes(new RouteBuilder() {
            @Override
            public void configure() {
                from("jms:queue:" + queue + "?transacted=true&lazyCreateTransactionManager=false"
                        + "&cacheLevelName=CACHE_CONSUMER&concurrentConsumers=" + consumers)
                        .transacted("oneTransaction")
                        .idempotentConsumer(header("uniqueMessageId"), known)
                        .to("sql:insert into effect (id, body) values (:#${header.uniqueMessageId}, :#${body})");
            }
        });
        camel.start();
        return "";
    }

    // Under a kill of this broker: what was sent and not confirmed is sent again with the same id of the bridge's own, and the
    // other broker drops it. What a sender sent twice goes over twice, for to the bridge those are two messages.
    private Object startBridge(String from, String to) throws Exception {
        String settings = "{\"name\": \"" + from + "\", \"queue-name\": \"" + from + "\", \"forwarding-address\": \"" + to
                + "\", \"use-duplicate-detection\": true, \"static-connectors\": [\"itself\"]}";
        return managed("broker", "createBridge", settings);
    }

    private Object managed(String resource, String operation, Object... arguments) throws Exception {
        Message request = session.createMessage();
        JMSManagementHelper.putOperationInvocation(request, resource, operation, arguments);
        Message reply = management.request(request);
        Object result = JMSManagementHelper.getResult(reply);
        if (!JMSManagementHelper.hasOperationSucceeded(reply)) {
            throw new IllegalStateException(operation + ": " + result);
        }
        return result;
    }
}
